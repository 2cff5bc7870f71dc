#!/usr/bin/env bash
# A federation of separate processes on loopback: 2 global servers over one
# embedded etcd member, 3 regions × (3 regional servers + 2 agents).
#
#   federation.sh start          start everything and wait until it is ready
#   federation.sh stop           stop everything (running tasks included)
#   federation.sh status         list the running processes
#   federation.sh start NAME     start one process again, such as japaneast-agent-2
#   federation.sh kill NAME      kill -9 one process
#
# NUSA       the binary            (default: bin/nusa of this checkout)
# NUSA_DIR   data, logs, pid files (default: $TMPDIR/nusa-local)
# NUSA_PORT  first port            (default: 7600; the script uses 500 ports, all
#            below 32768, where ports of outgoing connections begin)
# NUSA_TLS   1: every process has an identity; that of an operator is in
#            NUSA_DIR/identity/operator (default: no identities)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NUSA=${NUSA:-$here/../../bin/nusa}
DIR=${NUSA_DIR:-${TMPDIR:-/tmp}/nusa-local}
BASE=${NUSA_PORT:-7600}
# The roles read NUSA_* as configuration; these are this script's own.
TLS=${NUSA_TLS:-}
unset NUSA_DIR NUSA_PORT NUSA_TLS NUSA_IDENTITY
[ -n "$TLS" ] || export NUSA_INSECURE=true

REGIONS=(southeastasia westeurope eastus)
declare -A LOCATION=([southeastasia]=1.283,103.833 [westeurope]=52.3667,4.9 [eastus]=37.3719,-79.8164)
declare -A LABELS=([southeastasia]=jurisdiction=sg [westeurope]=jurisdiction=eu [eastus]=jurisdiction=us)

GLOBALS="127.0.0.1:$BASE,127.0.0.1:$((BASE + 5))"

names() {
  printf '%s\n' global-1 global-2
  for r in "${REGIONS[@]}"; do
    for s in 1 2 3; do echo "$r-server-$s"; done
    for a in 1 2; do echo "$r-agent-$a"; done
  done
}

# port REGION SERVER OFFSET: each region has 100 ports, each server ten of them.
port() {
  local i
  for i in "${!REGIONS[@]}"; do
    [ "${REGIONS[$i]}" = "$1" ] && { echo $((BASE + 100 * (i + 1) + 10 * ($2 - 1) + $3)); return; }
  done
  echo "unknown region $1" >&2; return 1
}

# arguments NAME: the command line of a process.
arguments() {
  local name=$1 region n
  case $name in
    global-1) echo global --name global-1 --grpc-addr "127.0.0.1:$BASE" --http-addr "127.0.0.1:$((BASE + 1))" \
                --etcd-client-addr "127.0.0.1:$((BASE + 2))" --etcd-peer-addr "127.0.0.1:$((BASE + 3))" ;;
    global-2) echo global --name global-2 --grpc-addr "127.0.0.1:$((BASE + 5))" --http-addr "127.0.0.1:$((BASE + 6))" \
                --etcd-endpoints "127.0.0.1:$((BASE + 2))" ;;
    *-server-*)
      region=${name%-server-*} n=${name##*-}
      echo regional --name "$name" --region "$region" --location "${LOCATION[$region]}" --label "${LABELS[$region]}" \
        --grpc-addr "127.0.0.1:$(port "$region" "$n" 0)" --raft-addr "127.0.0.1:$(port "$region" "$n" 1)" \
        --gossip-addr "127.0.0.1:$(port "$region" "$n" 2)" --probe-addr "127.0.0.1:$(port "$region" "$n" 3)" \
        --http-addr "127.0.0.1:$(port "$region" "$n" 4)" \
        --join "127.0.0.1:$(port "$region" 1 2)" --bootstrap-expect 3 --global "$GLOBALS" ;;
    *-agent-*)
      region=${name%-agent-*} n=${name##*-}
      # Leaving on shutdown, so that no task outlives `stop`.
      echo agent --name "$name" --region "$region" --shared-machine local --share 6 --leave-on-shutdown \
        --http-addr "127.0.0.1:$(port "$region" $((n + 4)) 0)" \
        --servers "127.0.0.1:$(port "$region" 1 0),127.0.0.1:$(port "$region" 2 0),127.0.0.1:$(port "$region" 3 0)" ;;
  esac
}

# member NAME: the identity of a process.
member() {
  case $1 in
    global-*) echo "global/$1" ;;
    *-server-*) echo "region/${1%-server-*}/server/$1" ;;
    *-agent-*) echo "region/${1%-agent-*}/agent/$1" ;;
    operator) echo operator/operator ;;
  esac
}

# identities: make an identity for each process, and one for an operator.
identities() {
  local n
  [ -e "$DIR/ca/root.pem" ] || "$NUSA" ca init --dir "$DIR/ca" >/dev/null
  [ -e "$DIR/gossip.key" ] || (umask 077; head -c 32 /dev/urandom | base64 >"$DIR/gossip.key")
  for n in $(names) operator; do
    "$NUSA" ca issue "$(member "$n")" --dir "$DIR/ca" --out "$DIR/identity/$n" >/dev/null
  done
}

known() { # NAME → is it one of ours? Else say which are.
  local all
  all=$(names)
  grep -qxF -e "$1" <<<"$all" && return
  echo "no process is called $1; there are: ${all//$'\n'/ }" >&2
  return 1
}

alive() { # PID file → is that process ours and running?
  local pid
  pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] && [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$(readlink -f "$NUSA")" ]
}

launch() {
  local name=$1 args
  alive "$DIR/run/$name.pid" && return
  args=$(arguments "$name")
  [ -z "$TLS" ] || args+=" --identity $DIR/identity/$name"
  case ${TLS:+$name} in *-server-*) args+=" --gossip-key-file $DIR/gossip.key" ;; esac
  mkdir -p "$DIR/run" "$DIR/log" "$DIR/data/$name"
  # shellcheck disable=SC2086 # the arguments hold no blanks
  setsid "$NUSA" $args --data-dir "$DIR/data/$name" </dev/null >>"$DIR/log/$name.log" 2>&1 &
  echo $! >"$DIR/run/$name.pid"
}

signal() { # NAME SIGNAL
  if alive "$DIR/run/$1.pid"; then kill "-$2" "$(cat "$DIR/run/$1.pid")" 2>/dev/null || true; fi
}

stop_process() { # NAME SIGNAL: signal and wait for the end
  local file="$DIR/run/$1.pid"
  signal "$1" "$2"
  for _ in $(seq 600); do
    alive "$file" || { rm -f "$file"; return 0; }
    sleep 0.1
  done
  echo "$1 (pid $(cat "$file")) did not end on $2 within 60 s" >&2
  return 1
}

ready() { # wait until every region is connected and every agent is a ready node
  local want_nodes=$((2 * ${#REGIONS[@]})) got end=$((SECONDS + 120)) alarms
  while [ $SECONDS -lt $end ]; do
    got=$("$NUSA" node list --addr "127.0.0.1:$BASE" ${TLS:+--identity "$DIR/identity/operator"} --timeout 5s -o json 2>/dev/null | grep -c '"NODE_STATE_READY"' || true)
    [ "$got" -ge "$want_nodes" ] && return
    # No region connects before an operator has recovered a store that was restored.
    alarms=$("$NUSA" server list --addr "127.0.0.1:$BASE" --timeout 5s 2>&1 >/dev/null | grep 'server recover' || true)
    if [ -n "$alarms" ]; then
      echo "everything runs, but no region connects: $alarms (--addr 127.0.0.1:$BASE)" >&2
      return 1
    fi
    sleep 0.2
  done
  echo "not ready after 120 s: ${got:-0} of $want_nodes nodes; see $DIR/log" >&2
  return 1
}

case ${1:-} in
  start)
    [ -x "$NUSA" ] || { echo "no binary at $NUSA: run 'make build' first" >&2; exit 1; }
    if [ -n "${2:-}" ]; then known "$2" && launch "$2"; exit; fi
    [ -z "$TLS" ] || identities
    for n in $(names); do launch "$n"; done
    ready
    echo "ready: try  $NUSA --addr 127.0.0.1:$BASE region list" ;;
  stop)
    # All agents at once: one that leaves gives its work to those that stay.
    for n in $(names); do case $n in *-agent-*) signal "$n" TERM ;; esac; done
    for n in $(names); do case $n in *-agent-*) stop_process "$n" TERM ;; esac; done
    for n in $(names); do case $n in *-server-*) stop_process "$n" TERM ;; esac; done
    stop_process global-2 TERM
    stop_process global-1 TERM ;;
  kill)
    known "${2:?which process?}"
    alive "$DIR/run/$2.pid" || { echo "$2 does not run" >&2; exit 1; }
    stop_process "$2" KILL ;;
  status)
    for n in $(names); do
      if alive "$DIR/run/$n.pid"; then echo "$n running $(cat "$DIR/run/$n.pid")"; else echo "$n stopped"; fi
    done ;;
  *) sed -n '2,16p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'; exit 1 ;;
esac
