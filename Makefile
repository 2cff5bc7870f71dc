# Targets for developers and operators. CI calls the same targets.
GO       ?= go
TAGS     := hashicorpmetrics
GOFLAGS  := -buildvcs=false -tags=$(TAGS)
export GOFLAGS
# One setting for builds, checks and tests: each package is compiled once. Only the race
# detector needs C.
export CGO_ENABLED := 0
TOOL     := GOFLAGS=-buildvcs=false $(GO) tool -modfile=tools/go.mod
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS  := -s -w -X github.com/nusa-scheduler/nusa/internal/serve.Version=$(VERSION)

# go test with the failures repeated at the end.
TEST     := GO=$(GO) .ci/gotest

.PHONY: build web web-test demo test race fuzz vulncheck check generated lint sim sim-planted proto gpu-check oracle integration integration-long bench bench-federation bench-quick clean help

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/nusa
	@mkdir -p bin
	$(GO) build -ldflags '-s -w' -o agent/supervise/slim/nusa-supervise ./cmd/nusa-supervise
	$(GO) build -tags $(TAGS),slim -ldflags '$(LDFLAGS)' -o bin/nusa ./cmd/nusa

demo: build ## run a whole federation on this machine, with a job; cut a region off
	@./bin/nusa demo --failover

test: ## run all tests: no root, no server, only loopback
	$(TEST) $(TESTFLAGS) $(LONGEST) ./...

# These packages take longest, so they begin first. Otherwise one core waits for them at the end.
LONGEST  := ./sim ./global ./agent ./agent/engine ./regional/quorum ./bench/federation ./global/store

SEED     ?= 1
WORLDS   ?= 5000
sim: ## run WORLDS=5000 simulated federations of ten minutes from SEED=1 on
	@$(GO) run ./sim/world/simulate -seed $(SEED) -worlds $(WORLDS)

sim-planted: ## plant known bugs one by one: the simulation must find each
	@GOFLAGS='-buildvcs=false -tags=$(TAGS),planted' $(GO) run ./sim/world/simulate -seed $(SEED) -worlds 2000 -planted

race: ## run all tests under the race detector
	CGO_ENABLED=1 $(TEST) -race ./...

FUZZTIME ?= 30s
fuzz: ## run each fuzz test for FUZZTIME=30s, or with FUZZNUMBER=N one: the decoders of bytes that others send
	@GO=$(GO) .ci/fuzz $(FUZZTIME) $(FUZZNUMBER)

VULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.1.4
vulncheck: ## look for known vulnerabilities in what is called: needs vuln.go.dev
	GOFLAGS=-buildvcs=false $(GO) run $(VULNCHECK) -tags=$(TAGS) ./...

check: generated lint ## check format, generated code, protos; run vet and staticcheck

generated: ## check format, lint the .proto files, compare the generated code with them
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "gofmt these files:"; echo "$$unformatted"; exit 1; fi
	$(TOOL) buf lint
	@$(MAKE) --no-print-directory proto
	@git diff --exit-code --stat -- proto internal/rest || { echo "the generated code is not that of the .proto files: run 'make proto' and commit"; exit 1; }

lint: ## run vet and staticcheck (integration tests included); changes no file
	$(GO) vet -tags=$(TAGS),integration ./...
	$(TOOL) staticcheck -tags=$(TAGS),integration ./...

web: ## build the web page into web/dist: needs npm
	@.ci/web build

web-test: ## check types of the web page, run its unit tests, compare web/dist with its source; skipped without npm
	@.ci/web test

proto: ## generate code and the OpenAPI document from proto/
	@rm -rf bin/openapi
	$(TOOL) buf generate
	$(GO) run ./internal/rest/openapi/merge bin/openapi internal/rest/openapi/openapi.json

gpu-check: ## print the accelerators that an agent on this machine finds
	@$(GO) run ./agent/gpu/check

oracle: ## compare plans of 100,000 random regions and federations with a brute-force oracle: some minutes; adds rows to deploy/LEDGER.md
	$(LEDGER) 'TestOracle, 100,000 draws' $(TEST) ./regional/sched -run '^TestOracle$$' -rapid.checks=100000 -count=1 -timeout 2h -v
	$(LEDGER) 'TestLargeAskIsNotStarved, 10,000 draws' $(TEST) ./regional/sched -run '^TestLargeAskIsNotStarved$$' -rapid.checks=10000 -count=1 -timeout 2h -v
	$(LEDGER) 'TestRandomLife, 10,000 draws' $(TEST) ./regional/sched -run '^TestRandomLife$$' -rapid.checks=10000 -count=1 -timeout 2h -v
	$(LEDGER) 'TestIndexDecidesAsBruteForce, 100,000 draws' $(TEST) ./global/place -run '^TestIndexDecidesAsBruteForce$$' -rapid.checks=100000 -count=1 -timeout 2h -v
	$(LEDGER) 'TestNearGroupsGoWhereBruteForceSends, 10,000 draws' $(TEST) ./global/place -run '^TestNearGroupsGoWhereBruteForceSends$$' -rapid.checks=10000 -count=1 -timeout 2h -v

# deploy/local kills servers and measures times, so it runs alone; its tests mostly wait, so they run at
# the same time. It has real agents with Docker and Incus. integration-long has the suites of the two drivers.
INTEGRATION := $(TEST) $(TESTFLAGS) -tags=$(TAGS),integration -count=1 -timeout 20m
LONG        := ^(TestKeysRotate|TestRootOfFilesRotates|TestRunbooks|TestReplaceMachines|TestWorkReturnsByItself)$$
KILLED      := ^TestServerKilledAtFiveThousand$$
integration: build ## test real processes: kill -9, recovery, agents with engines, a browser, the docs' commands
	$(INTEGRATION) -p 1 -parallel 6 -skip '$(LONG)|$(KILLED)' ./deploy/...
	$(INTEGRATION) -p 1 ./web/e2e

LEDGER   := .ci/ledger deploy/LEDGER.md
integration-long: build ## the long ones: drivers, change of keys, brokers; adds rows to deploy/LEDGER.md
	$(LEDGER) 'drivers of Docker and Incus' $(INTEGRATION) -p 1 ./agent/driver/docker ./agent/driver/incus
	$(LEDGER) 'change of keys, runbooks, machines that come back' $(INTEGRATION) -p 1 -run '$(LONG)' ./deploy/local
	$(LEDGER) 'a server killed at 5,000 submits a second' $(INTEGRATION) -v -p 1 -run '$(KILLED)' ./deploy/local
	$(LEDGER) 'NATS and RabbitMQ' $(INTEGRATION) -p 1 ./global/buses ./global/intakes
	$(LEDGER) '50 Incus instances at once' $(INTEGRATION) -p 1 -run '^$$' -bench Speed -benchtime 1x ./agent/driver/incus

bench: build ## run every benchmark, into bench/RESULTS.md: an hour on a quiet machine
	$(GO) run ./bench -out bench/RESULTS.md

bench-federation: build ## run the benchmarks of a federation, into their section of bench/RESULTS.md: forty minutes
	$(GO) run ./bench -federation -out bench/RESULTS.md

bench-quick: build ## check in a minute that every benchmark works; the figures mean nothing
	$(GO) run ./bench -quick

clean: ## remove built files
	rm -rf bin agent/supervise/slim/nusa-supervise
