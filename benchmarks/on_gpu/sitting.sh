#!/bin/bash
# Everything that a new kind of GPU is asked, in three sittings, the first two of five minutes and the third of eight:
#
#     OUT=results bash benchmarks/on_gpu/sitting.sh right    # the probe, the tests, a whole training killed and continued
#     OUT=results bash benchmarks/on_gpu/sitting.sh worth    # the figures, most worth first, each kept as it is measured
#     OUT=results bash benchmarks/on_gpu/sitting.sh longer   # losses.yaml: MW and InfoNCE trained until dev stops improving
#
# The machine needs PyTorch, transformers, numba, scipy and pyarrow, and no network; `wheels.py .whl` makes the folder of
# what else a training on Ray needs. PARTS names other figures, as SECTION:SECONDS:CASE,CASE. `longer` reads from DATA the
# data set `squad`, with the splits train and test, and the folder `tokenizer` of an encoder.
export PYTHONPATH=platform PYTHONUNBUFFERED=1 HF_HUB_DISABLE_PROGRESS_BARS=1 RAY_USAGE_STATS_ENABLED=0
WORK=${WORK:-/tmp/raytriever} PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} SHAPE=${SHAPE:-minilm} SIZE=${SIZE:-short}
export RAYTRIEVER_CACHE=$WORK/cache NUMBA_CACHE_DIR=$WORK/numba
mkdir -p $WORK $OUT
began=$SECONDS
mark() { echo "== $1 at $((SECONDS - began)) s"; }

section() {
	IFS=: read -r name seconds cases <<<"$1"
	mark "$name $cases"
	timeout $seconds $PYTHON benchmarks/gpu.py --device $DEVICE --sections $name ${cases:+--cases $cases} --size $SIZE \
		--output $OUT 2>&1 | grep -v 'it/s\|LOAD REPORT\|MISSING\|^Key\|^---\|^Notes\|^$\|tried:' | cut -c1-150
}

install() {
	[ -d .whl ] && $PYTHON -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $WORK/site .whl/*.whl
}

right() {
	install
	# It waits for processes more than for the card, so the tests run at the same time.
	(
		$PYTHON benchmarks/on_gpu/mission_data.py $WORK/mission --shape $SHAPE --documents 1000 >$OUT/mission_data.txt 2>&1
		PYTHONPATH=platform:$WORK/site timeout ${MISSION_SECONDS:-280} $PYTHON benchmarks/on_gpu/mission.py $WORK/mission \
			--shape $SHAPE --strategies ${STRATEGIES:-zero1,zero3,fsdp2} --batch-size 64 --output $OUT >$OUT/mission.txt 2>&1
		tail -c 4000 $WORK/mission/*.log >$OUT/mission_logs.txt
	) &
	mark "probe"
	timeout 100 $PYTHON benchmarks/on_gpu/first_light.py --device $DEVICE 2>&1 | tee $OUT/first_light.txt
	mark "tests"
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 timeout 150 $PYTHON -m pytest \
		-p xdist.plugin -n ${WORKERS:-6} --dist loadfile -m "${MARK:-gpu}" -o addopts=--import-mode=importlib \
		-o filterwarnings=default -W ignore::pytest.PytestConfigWarning -p no:cacheprovider -q --tb=short \
		${TESTS:-$(grep -rlE 'mark\.gpu|cuda: torch\.device' tests --include='test_*.py')} >$OUT/tests.txt 2>&1
	grep -E '^(FAILED|ERROR)|passed|failed' $OUT/tests.txt | cut -c1-160 | tail -25
	grep -E '^E  ' $OUT/tests.txt | cut -c1-160 | sort | uniq -c | sort -rn | head -12
	wait
	mark "training"
	cut -c1-900 $OUT/mission.txt | tail -8
}

worth() {
	local parts="losses:45:mw,errors training:95:xlm-r-large-1024,minilm-64 retrieval:60:search,encode-minilm kernels:40:"
	for part in ${PARTS:-$parts}; do section $part; done
}

longer() {
	install
	export PYTHONPATH=$PWD/platform:$WORK/site
	local house=$PWD out=$(realpath $OUT) data=$(realpath ${DATA:-.whl}) study=$(realpath ${STUDY:-benchmarks/on_gpu/losses.yaml})
	mkdir -p $WORK/longer/data && cd $WORK/longer && ln -sfn $data/squad data/squad
	mark "base encoder"
	$PYTHON $house/benchmarks/base_encoder.py data/squad --output data/base-encoder --tokenizer $data/tokenizer --length 64 \
		--tokens ${TOKENS:-131072} --steps ${STEPS:-900} --minutes 2 2>&1 | grep -E '^step|rror'
	mark "study"
	timeout 330 $PYTHON $house/jobs/study.py $study ${TRIAL_GPUS---trial-gpus 0.2} --tracker none --output study >study.txt 2>&1
	tail -3 study.txt | cut -c1-200
	cp study/study.md study/results.json $out/
}

command -v nvidia-smi >/dev/null && nvidia-smi -L
nproc
${1:?right or worth}
mark "end"
