"""Keep a cluster on this machine out of the way of the proxy that leads off it."""

from collections.abc import Mapping

VARIABLES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that name a proxy, in upper and in lower case."""
    return {name: value for name, value in environment.items() if name.lower() not in VARIABLES}
