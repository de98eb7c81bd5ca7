# membound on a slim CUDA runtime, from built wheels: `docker build .` with dist/*.whl beside this file.
# The CUDA runtime is linked into the wheel; the driver's library comes from the host.
ARG BASE=docker.io/nvidia/cuda:13.0.2-base-ubuntu24.04
FROM ${BASE}

RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/membound/bin:$PATH

# The newest wheel of dist/ that fits this interpreter; NumPy from the index.
RUN --mount=type=bind,source=dist,target=/dist \
    python3 -m venv /opt/membound \
    && pip install --no-cache-dir --no-index --no-deps --pre --find-links /dist membound \
    && pip install --no-cache-dir "membound[numpy]"
RUN membound check --quick

USER nobody
ENTRYPOINT ["membound"]
CMD ["info"]
