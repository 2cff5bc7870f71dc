# Everything a developer or an operator does with a checkout. CI calls the same
# targets.
GO       ?= go
TAGS     := hashicorpmetrics
GOFLAGS  := -buildvcs=false -tags=$(TAGS)
export GOFLAGS
TOOL     := GOFLAGS=-buildvcs=false $(GO) tool -modfile=tools/go.mod
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  := -s -w -X github.com/nusa-scheduler/nusa/internal/serve.Version=$(VERSION)

# go test that says at its end what failed.
TEST     := GO=$(GO) .ci/gotest

.PHONY: build demo test race check proto oracle integration bench bench-quick clean help

help: ## what there is
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/nusa
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -ldflags '-s -w' -o agent/supervise/slim/nusa-supervise ./cmd/nusa-supervise
	CGO_ENABLED=0 $(GO) build -tags $(TAGS),slim -ldflags '$(LDFLAGS)' -o bin/nusa ./cmd/nusa

demo: build ## a whole federation on this machine, with a job in it
	@./bin/nusa demo

test: ## all tests: no root, no server, no network but loopback
	$(TEST) ./...

race: ## the same under the race detector
	$(TEST) -race ./...

check: ## format, vet, staticcheck (integration tests included), protos
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt these files:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet -tags=$(TAGS),integration ./...
	$(TOOL) staticcheck -tags=$(TAGS),integration ./...
	$(TOOL) buf lint
	$(TOOL) buf generate
	@git diff --exit-code --stat -- proto || { echo "the generated code in proto/ is not that of the .proto files: run 'make proto' and commit"; exit 1; }

proto: ## generated code from proto/
	$(TOOL) buf generate

oracle: ## plans of 100,000 random regions against a brute-force oracle: some minutes
	$(TEST) ./regional/sched -run '^TestOracle$$' -rapid.checks=100000 -count=1 -timeout 2h -v
	$(TEST) ./regional/sched -run '^TestNoStarvation$$' -rapid.checks=10000 -count=1 -timeout 2h -v
	$(TEST) ./regional/sched -run '^TestRandomLife$$' -rapid.checks=10000 -count=1 -timeout 2h -v

# One package after the other: engines that start together make each other slow.
integration: build ## real processes and engines: deploy/local, kill -9, recovery, Docker, Incus
	$(TEST) -p 1 -tags=$(TAGS),integration -count=1 -timeout 10m ./deploy/... ./agent/driver/docker ./agent/driver/incus

bench: build ## every benchmark, into bench/RESULTS.md: a quarter of an hour of a quiet machine
	$(GO) run ./bench -out bench/RESULTS.md

bench-quick: build ## that every benchmark still works, in a minute; its figures mean nothing
	$(GO) run ./bench -quick

clean: ## built files
	rm -rf bin agent/supervise/slim/nusa-supervise
