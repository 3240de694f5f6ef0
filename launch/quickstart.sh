#!/usr/bin/env bash
# From a fresh Debian machine to a trained QK-Norm model in about ten minutes: installs the packages, builds, prepares
# English text, trains on 2 ranks, stops, resumes, evaluates, writes some text. Safe to run twice: what is there is kept.
#   ./launch/quickstart.sh [TEXT]     TEXT: a text file of your own instead of the dictionary. Its tokens and its run bear its
#                                     name and its checksum: run again it goes on, and a changed text begins anew.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,5s/^# *//p' "$0"; exit 0 ;; esac
text=${1:+$(realpath "$1")}
source "$(dirname "$0")/setup.sh"

name=quickstart
if [ -n "$text" ]; then
  [ -s "$text" ] || fail "$text: not a file with text in it"
  name=$(basename -- "$text" | sed 's/\.[^.]*$//' | tr -c 'A-Za-z0-9_\n' _)-$(sha256sum <"$text" | cut -c1-8)
  say "your text is $name: its tokens are data/$name, its run is runs/$name"
fi
tokens=data/$name

begin=$SECONDS
install_packages
build release keel
keel=build-release/launch/keel
# -q: no banner where a run ends with a code of its own. At Ctrl-C ranks get a minute for the last save, not a second;
# not in setup.sh, since tests have ranks that hang.
run="mpirun -q --mca odls_base_sigkill_timeout 60 -n 2 $keel"

# 40 MB of English prose: the Collaborative International Dictionary of English (GPL), from Debian's package. It is
# downloaded and unpacked into data/; nothing of it is installed.
if [ -z "$text" ]; then
  text=data/gcide.txt
  if [ ! -s "$text" ]; then
    say "fetching the dictionary text (Debian package dict-gcide)"
    mkdir -p data/gcide
    fetch() { (cd data/gcide && apt-get -o APT::Sandbox::User=root download -qq dict-gcide && dpkg-deb -x dict-gcide_*.deb .); }
    # Where no package was missing, the lists of packages may be old, or none.
    fetch 2>/dev/null || { (as_root apt-get update -qq) && fetch; } ||
      fail "could not fetch dict-gcide: give a text of your own, ./launch/quickstart.sh TEXT"
    zcat <data/gcide/usr/share/dictd/gcide.dict.dz >"$text.part" && mv "$text.part" "$text"
  fi
fi

if [ ! -s "$tokens.idx" ] || [ ! -s "$tokens-valid.idx" ]; then
  say "turning the text into tokens: a SentencePiece vocabulary of 8192, 1% held out"
  $keel tokenize "$text" --out "$tokens" --valid 0.01 --sentencepiece 8192
fi

train="train configs/quickstart.yaml name=$name data.train=$tokens data.valid=$tokens-valid"
say "training on 2 ranks, to be stopped after a minute"
code=0
$run $train train.stop_after=1m || code=$?
[ "$code" = 4 ] || [ "$code" = 0 ] || fail "training ended with exit code $code"

if [ "$code" = 4 ]; then
  say "the same command goes on from the checkpoint"
  $run $train
fi

checkpoint=$(ls "runs/$name"/checkpoints/step-*.h5 | tail -n 1)
say "what the run left in runs/$name"
$keel inspect "$checkpoint" | tail -n 3
say "held-out text: the model, then byte n-grams of the whole training text and bzip2"
$run eval "$checkpoint"
$keel ngram "$tokens" "$tokens-valid" --orders 2,4,5
say "some text"
$keel generate "$checkpoint" --prompt "Stability, n." --tokens 200 --compare "$text"
say "done in $(((SECONDS - begin) / 60))m$(((SECONDS - begin) % 60))s; next: edit configs/quickstart.yaml, or read README.md"
