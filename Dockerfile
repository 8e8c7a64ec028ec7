# An image with the command `fourierformer`: with CUDA (it runs on a CPU too), or, smaller, for CPUs alone:
#   docker build -t fourierformer .
#   docker build -t fourierformer:cpu --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
# Runs are written to the folder that is mounted at /work; the driver and --gpus come from the NVIDIA container toolkit:
#   docker run --rm --gpus all --shm-size 8g --user "$(id -u):$(id -g)" -v "$PWD:/work" fourierformer train lm
FROM python:3.11-slim-bookworm

# The kernel for CPUs is compiled at its first use, and Triton compiles with it too.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/fourierformer
COPY constraints.txt ./
# torch and torchvision from one place: of two builds the second does not load
ARG TORCH_INDEX=""
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-cache-dir -c constraints.txt --index-url "$TORCH_INDEX" torch torchvision; \
    fi
COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[sweep,tune]"

# caches for whichever user runs it
ENV HOME=/tmp XDG_CACHE_HOME=/tmp/cache
WORKDIR /work
USER 65534:65534
ENTRYPOINT ["fourierformer"]
CMD ["--help"]
