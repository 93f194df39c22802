# Every command of the project; `make help` lists them. The scripts are in scripts/.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help dev demo test alarms faults bench run down build dist lint fmt docs fuzz sabotage prose book

RELEASE := $(abspath $(or $(CARGO_TARGET_DIR),target))/release
# Every target builds the demo, too. An example brings the dev-dependencies, which switch on
# features of the program's libraries. If one target built without the demo, switching between
# targets would compile most of the program again.
RELEASE_BUILD := cargo build --release --locked --bin punctual --example demo

# The arguments of `make faults`, as flags of the program.
FAULTS := $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(REPLAY),--replay $(REPLAY)) \
  $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(AUTH),--auth) $(if $(DOORS),--doors) $(if $(REPLICATED),--replicated) $(if $(FORMER),--former $(abspath $(FORMER))) $(if $(RATE),--rate $(RATE)) $(if $(JSON),--json $(JSON))

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dev: ## everything for development in one process, and a first task (PORT=7070 KAFKA_PORT=9092)
	@scripts/stack prerequisites --dev
	@$(RELEASE_BUILD)
	@scripts/dev $(RELEASE)/punctual

demo: ## 1,000 tasks, two nodes, one of them killed half-way; says what arrived and how late
	@scripts/stack prerequisites
	@scripts/stack up
	@$(RELEASE_BUILD)
	@settings=$$(scripts/stack env); eval "$$settings"; \
	  PUNCTUAL_BIN=$(RELEASE)/punctual exec $(RELEASE)/examples/demo

test: ## lints and all tests, against a real Postgres, etcd and Kafka
	@scripts/stack prerequisites --test
	@scripts/stack up
	@scripts/lint
	@scripts/test

alarms: ## stage incidents, and see each alert fire and end; takes half an hour and root (ONLY="kafka_down etcd_down")
	@scripts/stack prerequisites --test
	@$(RELEASE_BUILD)
	@PUNCTUAL_BIN=$(RELEASE)/punctual scripts/alarms $(ONLY)

bench: ## all scenarios, half an hour; FULL=1: two hours; ONLY=burst: that one again
	@scripts/stack prerequisites
	@$(RELEASE_BUILD) --example suite --example poller --example floor
	@scripts/bench $(if $(FULL),--full) $(if $(ONLY),--again $(addprefix --only ,$(ONLY)))

faults: ## break three nodes and their servers: SECONDS=3600 SEED=7, or REPLAY=file, or SCENARIO=all (docs/faults.md)
	@scripts/stack prerequisites --test
	@cargo test --locked --quiet --test faults -- $(FAULTS)

run: ## one node in the foreground, with a topic to try it on (ctrl-C ends it)
	@scripts/stack prerequisites
	@scripts/stack up
	@scripts/stack topic demo --partitions 4 --config message.timestamp.type=LogAppendTime
	@$(RELEASE_BUILD)
	@scripts/run $(RELEASE)/punctual

down: ## stop Postgres, etcd and Kafka (data stays; `scripts/stack down --all --purge` forgets it)
	@scripts/stack down --all

build: ## the release binary
	@scripts/stack prerequisites --build
	@$(RELEASE_BUILD)

dist: ## packages for others in target/dist: tarball, Debian package, licences, SBOM, checksums
	@scripts/stack prerequisites --build
	@$(RELEASE_BUILD)
	@scripts/dist $(RELEASE)/punctual target/dist

fuzz: ## give the decoders bytes for SECONDS (60) each; TARGET=name of a test for one of them, FUZZ_SEED=n to look there again
	@FUZZ_SECONDS=$(or $(SECONDS),60) cargo test --locked --test fuzz -- --nocapture $(TARGET)

sabotage: ## break each promise in a copy, and require that its test notices; NUMBERS="02 06" for some of them
	@scripts/stack prerequisites --test
	@scripts/sabotage $(NUMBERS)

lint: ## formatting, clippy, shellcheck, docker files, alerts, manifests for Kubernetes
	@scripts/stack prerequisites --test
	@scripts/lint

fmt: ## format the code
	@cargo fmt

docs: ## generate docs/openapi.json, docs/problems.md and tests/interface/strict.json from the code
	@PUNCTUAL_WRITE_DOCS=1 cargo test --locked --quiet --lib api::tests::interface

prose: ## measure the prose and the layout of the tree; BEFORE=commit beside the figures of a commit
	@scripts/prose $(BEFORE)

book: ## build the docs as a book with search: .stack/book/html
	@scripts/book
