# The operator: watches the API server, holds no model and no torch.
#   docker build -t multigraft/operator .
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS dependencies
# More options of pip, such as --index-url of a mirror.
ARG PIP_OPTIONS=""
WORKDIR /src
COPY pyproject.toml requirements.lock ./
# Dependencies have a stage and a layer of their own: a change of our code neither installs nor copies nor pulls them
# anew. Exact versions are the lock's.
RUN sed -n 's/^\([A-Za-z0-9][^ ;]*==[^ ;\\]*\)\( ;.*[^\\ ]\)\{0,1\} *\\*$/\1\2/p' requirements.lock > constraints.txt \
 && python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], *project['optional-dependencies']['operator'], sep='\n')" > wanted.txt \
 && python -m venv /opt/multigraft \
 && /opt/multigraft/bin/pip install --no-cache-dir --disable-pip-version-check ${PIP_OPTIONS} \
      --constraint constraints.txt --requirement wanted.txt

FROM dependencies AS code
ARG PIP_OPTIONS=""
COPY README.md LICENSE ./
COPY core core
COPY operator operator
COPY trainer_image/multigraft_trainer trainer_image/multigraft_trainer
COPY kernels kernels
RUN /opt/multigraft/bin/pip install --no-cache-dir --disable-pip-version-check ${PIP_OPTIONS} --no-deps \
      --target /opt/multigraft-code .

FROM ${BASE_IMAGE}
COPY --from=dependencies /opt/multigraft /opt/multigraft
COPY --from=code /opt/multigraft-code /opt/multigraft-code
# Read-only root: whatever is written goes to /tmp, an emptyDir. PYTHONSAFEPATH: `operator` is also a module of Python.
# USER: a bare uid has no name, and libraries ask for one.
ENV PATH=/opt/multigraft/bin:/opt/multigraft-code/bin:$PATH \
    PYTHONPATH=/opt/multigraft-code \
    HOME=/tmp \
    USER=multigraft \
    PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["python", "-m", "multigraft_operator"]
