# syntax=docker/dockerfile:1
# The agent behind an API, on a CPU: the weights are served elsewhere, by vLLM for example (see compose.yaml).
#
#   docker build -t chain-of-agents .
#
# To run or train weights in the container itself, on a CPU, or with CUDA for `docker run --gpus all`:
#
#   docker build -t chain-of-agents:cpu --build-arg EXTRAS=serve,tools,train .
#   docker build -t chain-of-agents:gpu --build-arg EXTRAS=serve,tools,train --build-arg TORCH_INDEX= .
#
# The same image is the sandbox in compose.yaml. docs/guides/serve.md says how to run both.

FROM python:3.13.9-slim-trixie AS build
ARG EXTRAS=serve,tools
# Where torch comes from, if an extra needs it: pip prefers a local version such as 2.13.0+cpu to the default 2.13.0,
# which is built with CUDA. Empty: the default. PyTorch has an index like this one for each build (cu130, rocm6.4, ...).
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# For programs that the model writes, where this image is the sandbox.
ARG PACKAGES="numpy sympy"
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /opt/coa \
    && /opt/coa/bin/pip install --disable-pip-version-check -c constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} ".[${EXTRAS}]" ${PACKAGES}

FROM python:3.13.9-slim-trixie
RUN useradd --system --uid 10001 --user-group --create-home --home-dir /var/lib/coa coa \
    && install --directory --owner=coa --group=coa /runs
COPY --from=build /opt/coa /opt/coa
ENV PATH=/opt/coa/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_STATE_HOME=/var/lib/coa/state
USER 10001:10001
WORKDIR /var/lib/coa
# Stored responses and caches; finished runs, with --out /runs.
VOLUME ["/var/lib/coa", "/runs"]
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["coa"]
CMD ["serve", "--host", "0.0.0.0"]
