# Targets for developers; .ci/run calls the same ones.
GO      ?= go
PKGS    ?= ./chaos/proc ./... # the package that takes longest first

comma   := ,

ALL_SCENARIOS := mixed,disk-wipe,admin-ops,admin-audit,quorum-loss,snapshot-catchup,leader-lease,no-failover,unelectable-preferred,leader-disk-hang,unreliable-detector,high-fault-rate,short,single-fault-slo,rejoin-sole-voter,attached-sessions,lease-elections,lease-change,restore,votepower,etcd,etcd-recipes,silence

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
# How long the tests of one package may take.
TEST_TIMEOUT ?= 45m
# Test binaries build each program once, and share it.
SHARED  := export NORTHSTAR_PROGRAMS=$$(mktemp -d); trap 'rm -rf "$$NORTHSTAR_PROGRAMS"' EXIT;
LDFLAGS := -X northstar/node.Version=$(VERSION) -X main.version=$(VERSION)

.PHONY: build demo test race lint openapi bench etcd consul etcd-compat etcd-diff portable verify sim chaos chaos-long chaos-replay big-snapshot hostile explore mutants flaky long nightly fuzz axe screenshots steps page-cost release release-test manifests module-path adapters patroni etcd-crashes etcd-gap clean

build: ## bin/northstar-node and bin/northstarctl
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

demo: build ## a 3-node cluster on this machine with its dashboard; Ctrl-C ends it
	./bin/northstar-node dev

release: ## archives, deb, rpm, image, SBOM and checksums of VERSION=v0.1.0 in out/release; the same commit gives the same bytes
	cd deploy/release && $(GO) run . -version '$(VERSION)'

release-test: ## a whole release twice, installed, unpacked and run; the Helm chart; some minutes, and more with an empty build cache
	cd deploy/release && $(GO) vet ./... && $(GO) mod tidy -diff && NORTHSTAR_RELEASE=full $(GO) test -count=1 -timeout 60m ./...
	cd deploy/helm/tests && $(GO) vet ./... && $(GO) mod tidy -diff && $(GO) test -count=1 -timeout 30m ./...

manifests: ## deploy/kubernetes from the Helm chart, and the chart's copy of the alerts
	cp deploy/prometheus/alerts.yml deploy/helm/northstar/files/alerts.yml
	cd deploy/helm/tests && $(GO) test -count=1 -run TestPlainManifest -update

module-path: ## gives the module the path PATH=host/owner/name, in one commit, for those who publish it
	@/bin/sh deploy/release/module-path.sh '$(PATH)'

test: ## every test, without the vet of make lint; the summary has the skipped ones with their reasons, and what failed tests said
	@$(SHARED) $(GO) tool gotestsum --format pkgname -- -vet=off -timeout $(TEST_TIMEOUT) $(PKGS)

race: ## every test under the race detector, of PKGS=./state RUN=TestFeedHistory only some
	@$(SHARED) $(GO) tool gotestsum --format pkgname -- -vet=off -race -timeout $(TEST_TIMEOUT) $(if $(RUN),-run '$(RUN)') $(PKGS)

lint: ## formatting, vet, staticcheck, tidy go.mod
	@out=$$($(GO) tool gofumpt -l .) || exit 1; if [ -n "$$out" ]; then echo "not gofumpt'ed:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	GOGC=800 $(GO) tool staticcheck ./...
	$(GO) mod tidy -diff

portable: ## what is built only with a tag; FULL=1: also programs for other systems, whose types TestOtherSystems checks
	$(if $(FULL),GOOS=darwin $(GO) build ./client/... ./cmd/... ./chaos/pg)
	$(GO) vet -tags northstar_next ./state ./chaos/proc/nextnode
	$(GO) test -tags northstar_next ./state

openapi: ## the OpenAPI document in a linter; needs npx
	REDOCLY_TELEMETRY=off npx --yes @redocly/cli@2.77.0 lint api/openapi/openapi.json

bench: build ## throughput, idle cost and start-up beside a bare raft cluster, as tables
	$(GO) run ./benchmarks all

etcd: ## vet and build the etcd that the benchmarks compare with, the program that moves from etcd and the one that draws pictures, modules of their own
	cd benchmarks/etcd && $(GO) vet ./... && $(GO) build -o /dev/null . && $(GO) mod tidy -diff
	cd docs/examples/move-from-etcd && $(GO) vet . && $(GO) test . && $(GO) mod tidy -diff
	cd benchmarks/plot && $(GO) vet . && $(GO) test . && $(GO) mod tidy -diff

consul: ## the Consul that go run ./benchmarks failures -consul compares with, a module of its own; the first build takes long
	cd benchmarks/consul && $(GO) build -o /dev/null github.com/hashicorp/consul && $(GO) mod tidy -diff

etcd-compat: ## the etcd API beside an embedded etcd, etcd's Go client while leaders are killed, the commands of docs/etcd.md, and a move from etcd
	cd benchmarks/etcd && $(GO) test ./compat

etcd-diff: ## N=100000 random programs, from SEED=1 on, whose answers must be equal on etcd and on NorthStar
	cd benchmarks/etcd && $(GO) test ./compat -run '^TestDifferential$$' -count=1 -v -timeout 0 -args -programs $(or $(N),100000) -seed $(or $(SEED),1)
adapters: ## vet and test the adapters, modules of their own
	cd adapters/client-go && $(GO) vet ./... && $(GO) test ./... && $(GO) mod tidy -diff
	cd adapters/etcdlock && $(GO) vet ./... && $(GO) test ./... && $(GO) mod tidy -diff

patroni: ## PostgreSQL twice under the distribution's Patroni on three nodes, while leaders and the primary are killed; needs patroni, python3-etcd and postgresql
	$(GO) test ./chaos/proc -run '^TestPatroni$$' -count=1 -v -timeout 10m

etcd-crashes: ## etcd's Go client under faults: 1,000 watches and 64 writers through KILLS=100 leader kills, then elections, mutexes and STM under FAULTS=100 faults, which SEED=1 selects
	cd benchmarks/etcd && $(GO) test ./compat -run '^Test(Watches|Writers)ThroughCrashes$$|^TestRecipesUnderFaults$$' -count=1 -v -timeout 0 -args -kills $(or $(KILLS),100) -faults $(or $(FAULTS),100) -seed $(or $(SEED),1)

etcd-gap: ## the write gap of 64 etcd clients when the leader is killed, KILLS=100 times, on disk and with default timeouts; fails when it exceeds the aims: only for a machine without other load
	cd benchmarks/etcd && $(GO) test ./compat -run '^TestWritersThroughCrashes$$' -count=1 -v -timeout 0 -args -kills $(or $(KILLS),100) -limits -disk

sim: ## whole nodes in virtual time under faults: SEEDS=1000 runs of each size, or of NODES=5, from FROM=1 on, of each of SCENARIOS=mixed,disk-wipe,admin-ops
	$(GO) run ./chaos/run simulate -scenarios $(or $(SCENARIOS),mixed$(comma)disk-wipe$(comma)admin-ops) -runs $(or $(SEEDS),1000) -from $(or $(FROM),1) $(if $(NODES),-nodes $(NODES))

chaos: ## a few minutes of both: simulation runs of every scenario, then real processes under kill -9, SIGSTOP, full disks and partitions
	$(GO) run ./chaos/run simulate -scenarios $(ALL_SCENARIOS) -seconds 90 -from $(or $(SEED),1)
	NORTHSTAR_CHAOS_ITERATIONS=$(or $(ITERATIONS),40) NORTHSTAR_CHAOS_SEED=$(SEED) $(GO) test ./chaos/proc -run '^TestChaos$$' -count=1 -v -timeout 30m

chaos-long: ## real processes for SECONDS=3600, on NODES=3; also fails when leaders or writes come later than promised
	NORTHSTAR_CHAOS_FIGURES=1 NORTHSTAR_CHAOS_SECONDS=$(or $(SECONDS),3600) NORTHSTAR_CHAOS_NODES=$(or $(NODES),3) NORTHSTAR_CHAOS_SEED=$(SEED) $(GO) test ./chaos/proc -run '^TestChaos$$' -count=1 -v -timeout 0

big-snapshot: ## a snapshot of 500 MB in real processes while a node is down
	NORTHSTAR_SNAPSHOT=500 $(GO) test ./chaos/proc -run '^TestBigSnapshot$$' -count=1 -v -timeout 10m

hostile: ## hostile clients against real processes, at full size for some minutes; ATTACKS='idle|raft-flood' for some of them; fails when memory or latencies exceed what docs/testing.md promises
	NORTHSTAR_HOSTILE=full $(GO) test ./chaos/hostile -run '^TestAttacks$$/^on$$/^($(or $(ATTACKS),.*))$$' -count=1 -v -timeout 60m

explore: ## every state of a small cluster, up to the steps that the tests go; NIGHTLY=1 goes further; MODELS=leases,votes for some; DEPTH=14
	$(GO) run ./chaos/run explore $(if $(NIGHTLY),-nightly -states 6000000) $(if $(DEPTH),-depth $(DEPTH)) -models '$(MODELS)'

mutants: ## every planted bug of chaos/mutants must be found, or those in ONLY=a,b, or those with a BUDGET=500 of seeds at most; UPDATE=1 begins with the seeds that found them from now on
	$(GO) run ./chaos/run mutants $(if $(UPDATE),-update) $(if $(BUDGET),-budget $(BUDGET)) -only '$(ONLY)'

chaos-replay: ## one simulation run again, exactly: SEED=17 NODES=3 SCENARIO=mixed, optionally with FAULTS=2,5 alone
	$(if $(SEED),,$(error SEED=… is missing: make chaos-replay SEED=17 NODES=3 SCENARIO=mixed))
	$(GO) run ./chaos/run replay -scenario $(or $(SCENARIO),mixed) -nodes $(or $(NODES),3) -seed $(SEED) -faults '$(FAULTS)'

# Packages whose tests compute, most of them in virtual time: the race detector makes them ten times slower. With
# COMPUTING='^$$' they run with it, too.
COMPUTING := ^northstar$$|/docs$$|/chaos/(explore|sim)$$

flaky: ## every test package N=20 times under the race detector, but for those that only compute, 8 at a time, with two busy loops; PKGS=./consensus and RUN=TestStaleLeader for some of them; FOR=20m for a piece, which the next call continues; fails when any test failed
	@$(SHARED) NORTHSTAR_TEST_FEWER=1 NORTHSTAR_TEST_SLOWDOWN=3 NORTHSTAR_CHAOS_ITERATIONS=$(or $(ITERATIONS),10) $(GO) run ./chaos/run flaky -n $(or $(N),20) -plain '$(COMPUTING)' -run '$(RUN)' -pkgs '$(PKGS)' -for $(or $(FOR),0)

fuzz: ## every fuzz target for FUZZTIME=30s each, six at a time
	@GO='$(GO)' .ci/fuzz $(or $(FUZZTIME),30s)

long: ## the long forms of tests: each bit of a log file, 200 transfers, 20 that fail in each way, 100 plans, contests for 10 minutes, a fleet of 10,000 sessions
	@failed=; NORTHSTAR_EXHAUSTIVE=1 $(GO) test ./consensus/storage -run EveryBit -count=1 -timeout 0 || failed=1; \
	NORTHSTAR_TRANSFERS=200 NORTHSTAR_TRANSFER_FAULTS=20 NORTHSTAR_PLANS=100 NORTHSTAR_CONTEST=10m NORTHSTAR_FLEET=10000 $(GO) test ./chaos/proc -run '^(TestTransfersUnderLoad|TestTransferTargetFails|TestTransferTargetLags|TestPlanMatchesExecution|TestCandidates|TestFleet)$$' -count=1 -v -timeout 0 || failed=1; \
	[ -z "$$failed" ]

nightly: ## what CI leaves out, for some hours: all planted bugs, many states of small clusters, many runs of every scenario, all tests with all repetitions, their long forms, real processes, hostile clients, the etcd API under faults and beside etcd, modules of their own, long fuzzing, flaky tests
	@failed=; for step in mutants 'portable FULL=1' 'explore NIGHTLY=1' 'sim SEEDS=1000 SCENARIOS=$(ALL_SCENARIOS)' test race long 'chaos-long SECONDS=3600' big-snapshot hostile etcd adapters etcd-compat etcd-crashes etcd-diff 'fuzz FUZZTIME=5m' flaky release-test; do \
	  echo "=== make $$step"; $(MAKE) $$step || failed="$$failed [$$step]"; \
	done; if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

AXE := axe-core@4.10.3

axe: ## the accessibility checker that the test of the dashboard uses, from the npm registry
	mkdir -p out/axe && cd out/axe && npm pack --silent $(AXE) && tar -xzf axe-core-*.tgz package/axe.min.js

screenshots: ## the pictures of the dashboard in docs, from a cluster that fails on purpose; needs Chromium
	NORTHSTAR_SCREENSHOTS=$(CURDIR)/docs $(GO) test ./api/dashboard -run '^TestScreenshots$$' -count=1 -v
	$(MAKE) steps && cp out/steps/*-quorum-lost.png docs/dashboard-quorum-lost.png

steps: ## pictures of an operator's first tasks in the page, in DIR=out/steps, and in the output the same by northstarctl; needs Chromium
	@mkdir -p $(or $(DIR),out/steps)
	NORTHSTAR_STEPS=$(abspath $(or $(DIR),out/steps)) $(GO) test ./api/dashboard ./cmd/northstarctl -run '^TestOperator$$' -count=1 -v

page-cost: ## how long the dashboard takes to load, and what an open page costs; fails above the aims: only for a machine without other load
	NORTHSTAR_PAGE_COST=1 $(GO) test ./api/dashboard -run '^TestCost$$' -count=1 -v

verify: lint test race ## what a release must pass

clean:
	rm -rf bin out
