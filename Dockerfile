# The service of `smoothcert serve` on CPUs. docs/cluster.md shows how to build and run it.
FROM python:3.11-slim

# Extras to install; serve-ray adds Ray Serve. pip installs the CPU build of PyTorch from an index that has it.
ARG EXTRAS=serve
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

WORKDIR /opt/smoothcert
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install -c constraints.txt ".[${EXTRAS}]" \
    && useradd --create-home --uid 10001 smoothcert \
    && mkdir /models /records \
    && chown 10001 /records

USER 10001
WORKDIR /records
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["smoothcert", "serve", "--host", "0.0.0.0", "--port", "8000"]
