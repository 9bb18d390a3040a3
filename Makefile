# railcni: `make help` lists the targets.
SHELL := /bin/sh
# The system's own before that of a version manager: every user can run it, and it starts sooner.
PYTHON ?= $(shell for p in /usr/bin/python3 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; done; echo python3)
# The interpreter itself, not a virtual environment's or a version manager's link to it: the launchers name it.
BASE := $(shell $(PYTHON) -c 'import os,sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))')
VENV := .venv/bin
PLUGINS := bin/macvlan bin/host-device bin/sriov bin/rdma bin/whereabouts
PREFIXED := $(PLUGINS:bin/%=bin/railcni-%)
SCRIPTS := $(PLUGINS:bin/%=libexec/%)
LAUNCHERS := $(PLUGINS) $(PREFIXED) $(SCRIPTS)
TAG := $(shell $(BASE) -c 'import sys; print(sys.implementation.cache_tag)')
PACK := bin/modules.$(TAG)
ifeq ($(origin CC),default)
CC := $(shell command -v musl-gcc || echo cc)
endif
PROGRAMS := cli cluster dist documents lint node resources
SOURCES := $(shell find cni ipam -name '*.py' $(PROGRAMS:%=-not -path 'cni/%/*'))

unexport PYTHONDONTWRITEBYTECODE # pytest compiles each test once, not in each process of each run

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: all plugins help demo unit test check long lab bundle image release version manual bench faults fuzz histories soak site \
    screens clean

all: plugins bin/railcni bin/kubectl-railcni .venv/ready ## the executables in bin/, and .venv for the command, the checks and the tests

plugins: $(LAUNCHERS) $(PACK) ## the executables that a runtime calls: they need Python 3.11 alone

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: plugins bin/railcni bin/kubectl-railcni ## two pods on one RDMA-like master, in namespaces of its own: as root or as anybody; installs what the command needs into .venv
	@bin/railcni demo

test: all ## all tests, in six processes, since they wait two thirds of the time; those that need root or a package which is missing are skipped and say so
	$(VENV)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder $(ARGS)

unit: all ## the pure tests, for a contributor's loop: they need no root and, by python3 -m pytest tests/unit, no library but pytest and hypothesis
	$(VENV)/python -m pytest -q -p tests.alone $(ARGS) tests/unit

check: all ## style, types, the direction of imports, the modules that a plugin loads
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(VENV)/python -m pytest -q tests/blackbox/test_module_list.py

long: all ## the long tests: the whole matrix of hosts, faults planted in copies of the plugins, the bundle on hosts of other kinds, the image
	$(VENV)/python -m pytest -m long $(ARGS)

lab: all ## a kernel with RDMA and SR-IOV in QEMU, and the plugins in it; what it needs is downloaded into build/lab; ARGS=roce: one machine, ARGS=--list: all, ARGS=--help
	$(VENV)/python -m tests.lab $(ARGS)

bundle: all ## build/railcni-VERSION-linux-ARCH and its .tar.gz: all that runs on a host without Python, this interpreter too
	@$(VENV)/python -m cni.dist.bundle --python $(BASE) $(ARGS)

image: all ## the bundle, and by buildah or podman an OCI image of it that installs it on a node: build/railcni-VERSION-ARCH.oci.tar; ARGS=--device-plugin: for `railcni device-plugin`; ARGS="--with BUNDLE": for another architecture too
	@sh .ci/image $(BASE) $(ARGS)

release: all ## build/release: bundle, bill of materials, images, manifests, chart, manifest of krew, changes, provenance, checksums; ARGS="--with BUNDLE": for another architecture too, ARGS="--key FILE": signed with an SSH key
	@$(VENV)/python .ci/release.py $(BASE) $(ARGS)

manual: all ## build/share: manual pages, and completion for bash, zsh and fish; a bundle has them too
	@$(VENV)/python .ci/manual.py build/share

version: all ## have every file name the version of pyproject.toml
	@$(VENV)/python .ci/release.py version

bench: all ## ours against the Go plugins, alternately in one run, and the stores that nodes share; ARGS="--only kubernetes": a part
	$(VENV)/python -m tests.bench $(ARGS)

faults: all ## plugins killed, failed and stopped at every point over every store, what servers do to each request, power losses; ARGS="--jobs 2": two at a time, "--sample 10": a part, "--store etcd": one store, "--every": hours
	$(VENV)/python -m tests.faults $(ARGS)

fuzz: all ## hostile input at random, 100 times as much as in `make test`: some minutes; SEED=7 repeats a run, FUZZ=500 is longer
	@seed=$${SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; echo "SEED=$$seed"; \
	FUZZ=$${FUZZ:-100} $(VENV)/python -m pytest --timeout=0 --hypothesis-seed=$$seed $(ARGS) tests/faults/test_fuzz.py

histories: all ## concurrent calls and random kills, judged by a checker, for SECONDS=60; then thousands of random steps against a model
	$(VENV)/python -m tests.faults.churn $(or $(SECONDS),60) $(ARGS)
	$(VENV)/python -m tests.faults.plugin_machine $(or $(SECONDS),240)

soak: all ## churn over 64 namespaces with random kills for MINUTES=60: nothing may grow; then the model for as long
	$(VENV)/python -m tests.faults.soak $(or $(MINUTES),60) $(ARGS)
	$(VENV)/python -m tests.faults.plugin_machine $$(( 60 * $(or $(MINUTES),60) ))

site: .venv/command ## the pages as a site with a search in build/site; a dead link is an error; says why it is skipped where zensical cannot be had
	@if $(VENV)/python -c 'import zensical' 2>/dev/null || sh .ci/venv $(BASE) requirements-site.txt; then \
	$(VENV)/python .ci/site.py && echo "build/site/index.html"; else echo "skipped: the site needs zensical" >&2; fi

screens: all ## the pictures of screens in docs/screens anew, as root
	$(VENV)/python -m tests.docs.screens

# A script and the pack that it reads are of one Python: with another PYTHON both are made anew.
$(SCRIPTS): libexec/%: bin/launcher.in Makefile $(PACK)
	@mkdir -p libexec
	@sed -e 's|@PYTHON@|$(BASE)|' -e 's|@PLUGIN@|$*|' $< > $@.new && chmod 755 $@.new && mv $@.new $@

# An executable runs its script, unless a warm worker serves the call. Without a C compiler it is the script, behind shell.in.
$(PLUGINS): bin/%: libexec/% build/launcher bin/shell.in
	@if [ -s build/launcher ]; then cp build/launcher $@.new; else sed 's|@PYTHON@|$(BASE)|;$$r libexec/$*' bin/shell.in > $@.new; fi \
	&& chmod 755 $@.new && mv $@.new $@

build/launcher: cni/warm/launcher.c cni/warm/launcher.flags Makefile $(PACK)
	@mkdir -p build
	@$(CC) @cni/warm/launcher.flags -DTAG='"$(TAG)"' $< -o $@ || { : > $@; echo "no native launcher, which needs a C compiler and a static C library (Debian: musl-tools, or gcc and libc6-dev): each call starts Python" >&2; }

$(PACK): $(SOURCES)
	@$(BASE) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(BASE) -I cni/compiled/pack.py

$(PREFIXED): bin/railcni-%: bin/%
	@ln -sf $* $@

bin/railcni: bin/command.in .venv/command
	@sed 's|@ROOT@|$(CURDIR)|g' $< > $@.new && chmod 755 $@.new && mv $@.new $@

.venv/command: requirements-command.txt
	@rm -f $@
	@sh .ci/venv $(BASE) $<
	@touch $@

bin/kubectl-railcni: Makefile
	@printf '#!/bin/sh\n# kubectl runs this as `kubectl railcni`; make writes it.\nRAILCNI_NAME="kubectl railcni"\nexport RAILCNI_NAME\nexec "%s/bin/railcni" cluster "$$@"\n' '$(CURDIR)' > $@ && chmod 755 $@

.venv/ready: requirements.txt .venv/command
	@sh .ci/venv $(BASE) $<
	@touch $@

clean: ## remove what make made
	rm -rf .venv build libexec $(LAUNCHERS) bin/modules.* bin/railcni bin/kubectl-railcni .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
