# syntax=docker/dockerfile:1
# docker build --build-arg PUNCTUAL_COMMIT="$(git rev-parse --short HEAD)" -t punctual .

FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential cmake pkg-config python3 zlib1g-dev libssl-dev protobuf-compiler \
        libprotobuf-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# For `punctual --version`: the image has no git repository.
ARG PUNCTUAL_COMMIT=unknown
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    PUNCTUAL_COMMIT="$PUNCTUAL_COMMIT" cargo build --release --locked --bin punctual \
    && install -D target/release/punctual /out/punctual \
    && scripts/notices /out/THIRD-PARTY-NOTICES.txt

# The same Debian as above, because the binary is linked to its glibc, OpenSSL and zlib.
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 punctual \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin punctual
COPY --from=build /out/punctual /usr/local/bin/punctual
COPY --from=build /out/THIRD-PARTY-NOTICES.txt /usr/share/doc/punctual/
USER 10001:10001
# Beyond loopback, a node starts only with PUNCTUAL_AUTH_FILE or PUNCTUAL_ALLOW_ANONYMOUS.
ENV PUNCTUAL_LISTEN=0.0.0.0:7070
EXPOSE 7070
# bash speaks TCP itself, so the image needs no HTTP client. With TLS, a living node answers 400.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7070 && printf 'GET /livez HTTP/1.0\\r\\n\\r\\n' >&3 && grep -qE '200 OK|400 Bad Request' <&3"]
ENTRYPOINT ["punctual"]
CMD ["serve"]
