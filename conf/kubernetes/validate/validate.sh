#!/usr/bin/env bash
# Two pods validate the RDMA network between them; the client prints a table. ROLE server|client, OWN and PEER addresses, MTU.
# Exit code: 0 all passed, 1 something failed, or could not be tried because the image lacks a program.
set -u
IFNAME=${IFNAME:-net1} MTU=${MTU:-9000} SECONDS_TO_WAIT=${SECONDS_TO_WAIT:-300} ITERATIONS=${ITERATIONS:-5000}
SYS=${SYS:-/sys/class/infiniband}
failed=0

row() { # CHECK RESULT WHAT
    printf '%-24s %-8s %s\n' "$1" "$2" "$3"
    case $2 in PASS | SKIP) ;; *) failed=1 ;; esac
}

has() { command -v "$1" >/dev/null 2>&1; }

find_gid() { # the verbs device and GID index of OWN as RoCE v2: "mlx5_0 3"
    local hex entry type
    hex=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${OWN//./ })
    for entry in "$SYS"/*/ports/*/gids/*; do
        [ -r "$entry" ] && [ "$(cat "$entry" 2>/dev/null)" = "$hex" ] || continue
        type=$(cat "${entry%/gids/*}/gid_attrs/types/${entry##*/}" 2>/dev/null)
        [ "$type" = "RoCE v2" ] || continue
        entry=${entry#"$SYS"/}
        echo "${entry%%/*} ${entry##*/}"
        return
    done
}

check_link() {
    local mtu
    mtu=$(cat "/sys/class/net/$IFNAME/mtu" 2>/dev/null)
    if [ -z "$mtu" ]; then
        row link FAIL "there is no $IFNAME: see the pod's events, and \`railcni nad lint\`"
    elif [ "$mtu" != "$MTU" ]; then
        row link FAIL "$IFNAME has MTU $mtu, want $MTU"
    else
        row link PASS "$IFNAME has MTU $mtu"
    fi
}

check_ping() {
    local end=$((SECONDS + SECONDS_TO_WAIT))
    has ping || { row "jumbo ping" MISSING "the image has no ping: install iputils-ping"; return; }
    until ping -c 1 -W 1 -I "$IFNAME" "$PEER" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { row "jumbo ping" FAIL "$PEER does not answer at all"; return; }
        sleep 1
    done
    if ping -c 3 -W 2 -M do -s $((MTU - 28)) -I "$IFNAME" "$PEER" >/dev/null 2>&1; then
        row "jumbo ping" PASS "$((MTU - 28)) bytes of payload, not fragmented"
    else
        row "jumbo ping" FAIL "$PEER answers, but not to MTU $MTU: see the MTU of the switches and of both masters"
    fi
}

bandwidth() { # NAME PORT OPTIONS...: as server once, as client until the server is there
    local name=$1 port=$2 end=$((SECONDS + SECONDS_TO_WAIT)) out line
    shift 2
    if [ "$ROLE" = server ]; then
        timeout "$SECONDS_TO_WAIT" ib_write_bw -d "$device" -p "$port" -F --report_gbits -q 1 -n "$ITERATIONS" "$@" >/dev/null 2>&1 &
        return
    fi
    while :; do
        out=$(timeout 60 ib_write_bw -d "$device" -p "$port" -F --report_gbits -q 1 -n "$ITERATIONS" "$@" "$PEER" 2>&1) && break
        [ $SECONDS -lt $end ] || { row "$name" FAIL "$(echo "$out" | tail -n 1)"; return; }
        sleep 2
    done
    line=$(echo "$out" | awk '$1 ~ /^[0-9]+$/ && NF >= 4 && $4 > 0 { print $4 }' | tail -n 1) # 0: no steady clock to measure by
    row "$name" PASS "${line:-?} Gb/s"
    echo "$out" | sed 's/^/    /'
}

check_rdma() {
    local found device index
    has ib_write_bw || {
        row "ib_write_bw -x" MISSING "the image has no ib_write_bw: install perftest"
        row "ib_write_bw -R" MISSING "the image has no ib_write_bw: install perftest"
        return
    }
    found=$(find_gid)
    [ -n "$found" ] || { row gid FAIL "$OWN has no RoCE v2 GID: see \`railcni rdma\` and \`railcni doctor\` on the node"; return; }
    device=${found% *} index=${found#* }
    row gid PASS "$device, index $index"
    bandwidth "ib_write_bw -x" 18515 -x "$index"
    bandwidth "ib_write_bw -R" 18516 -R
    if [ -e /dev/nvidia0 ] && ib_write_bw --help 2>&1 | grep -q -e --use_cuda; then
        bandwidth "ib_write_bw, GPU" 18517 -x "$index" --use_cuda=0
    else
        row "ib_write_bw, GPU" SKIP "no GPU here, or a perftest without CUDA"
    fi
}

printf '%-24s %-8s %s\n' CHECK RESULT "$ROLE $OWN"
check_link
check_ping
check_rdma
wait
if [ $failed = 0 ]; then echo "PASS"; else echo "FAIL"; fi
exit $failed
