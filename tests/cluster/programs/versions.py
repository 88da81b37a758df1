"""The versions of what a test cluster is made of. `tests/kube/*/go.mod` say the same; a test compares them."""

KUBERNETES = "1.34.4"
ETCD = "3.6.4"
HELM = "3.19.5"
COREDNS = "1.14.1"
