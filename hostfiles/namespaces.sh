#!/bin/sh
# Hosts without machines: network namespaces of this one, each with its own name and address, on a bridge, behind a
# link of the given rate. What crosses it is real TCP in frames of 1514 bytes. Needs Linux, root, ip and tc (iproute2).
#
#     hostfiles/namespaces.sh with 4 1gbit dear-mpi bench      # up, run, and down whatever happens
#     hostfiles/namespaces.sh up 4 1gbit
#     RANKS_PER_HOST=2 hostfiles/namespaces.sh run 4 dear-mpi bench
#     hostfiles/namespaces.sh down 4
#
# MPIRUN is Open MPI's (default: mpirun), RANKS_PER_HOST its ranks on each host (1), LIMIT the seconds that a run may
# take (600), BURST what a link that was idle sends at once (256kb; links with 64kb do not reach 1gbit: it is one frame
# of TCP before it is cut), CONGESTION TCP's congestion control (reno, which every kernel allows in namespaces: with bbr,
# which some machines have, one message in a hundred takes 50 to 150 ms longer). SLOW="1 2 500mbit" gives what hosts 1 and
# 2 send each other this lower rate, inside the rate of their links.
set -eu
fail() { echo "$0: $*" >&2; exit 2; }
usage='with N RATE COMMAND... | up N RATE | run N COMMAND... | down N'
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
net=10.77.0

enter() {  # HOST COMMAND...: in a shell on this host, as ssh would
    host=$1; shift
    mkdir -p "$HOSTS_TMP/$host"
    # Open MPI knows hosts by their names, and keeps its files in TMPDIR: two of the same would be taken for one host.
    exec ip netns exec "$host" unshare --uts sh -c "hostname $host; export TMPDIR=$HOSTS_TMP/$host; $*"
}

if [ "${1:-}" = enter ]; then  # Open MPI calls us in the place of ssh: [options] ADDRESS COMMAND...
    shift
    while [ "${1#-}" != "$1" ]; do shift; done
    address=$1; shift
    enter "dear${address##*.}" "$@"
fi

[ $# -ge 2 ] || fail "usage: $usage"
verb=$1 hosts=$2; shift 2
case $hosts in *[!0-9]* | '') fail "N must be a number of hosts, not '$hosts'" ;; esac
[ "$hosts" -ge 1 ] && [ "$hosts" -le 250 ] || fail "N must be 1 to 250, not $hosts"
for tool in ip tc unshare timeout; do
    command -v $tool > /dev/null || fail "$tool is missing (Debian: apt-get install iproute2 util-linux coreutils)"
done
[ "$(id -u)" = 0 ] || fail 'only root may make network namespaces'

down() {
    trap '' HUP INT TERM  # whoever kills us a second time would leave hosts behind
    for i in $(seq 1 "$hosts"); do
        ip netns pids "dear$i" 2> /dev/null | xargs -r kill -9 2> /dev/null || true
        ip netns del "dear$i" 2> /dev/null || true
        ip link del "dearlink$i" 2> /dev/null || true
    done
    ip link del dearbridge 2> /dev/null || true
}

up() {
    rate=$1
    { ! ip link show dearbridge && [ ! -e /run/netns/dear1 ]; } > /dev/null 2>&1 || fail "there are hosts already: $0 down N"
    trap 'down; fail "could not make $hosts hosts of $rate; none are left"' EXIT
    trap 'exit 1' HUP INT TERM
    ip link add dearbridge type bridge
    ip link set dearbridge up
    for i in $(seq 1 "$hosts"); do
        ip netns add "dear$i"
        ip link add "dearlink$i" mtu 1500 type veth peer name eth0 mtu 1500 netns "dear$i"
        ip link set "dearlink$i" master dearbridge up
        ip -n "dear$i" addr add "$net.$i/24" dev eth0
        ip -n "dear$i" link set eth0 up
        ip -n "dear$i" link set lo up
        ip netns exec "dear$i" sh -c 'echo "$1" > /proc/sys/net/ipv4/tcp_congestion_control' sh "${CONGESTION:-reno}"
        tc -n "dear$i" qdisc add dev eth0 root tbf rate "$rate" burst "${BURST:-256kb}" latency 50ms
    done
    # shellcheck disable=SC2086  # three words
    [ -z "${SLOW:-}" ] || slow "$rate" $SLOW
}

slow() {  # RATE of a link, two hosts, RATE between them
    line=$1 one=$2 other=$3 between=$4 burst=${BURST:-256kb}
    for pair in "$one $other" "$other $one"; do
        from=dear${pair% *} to=$net.${pair#* }
        tc -n "$from" qdisc replace dev eth0 root handle 1: htb default 10
        tc -n "$from" class add dev eth0 parent 1: classid 1:1 htb rate "$line" burst "$burst" cburst "$burst" quantum 6056
        # Each may lend from the link what the other leaves; 1mbit is what it has without.
        tc -n "$from" class add dev eth0 parent 1:1 classid 1:10 htb rate 1mbit ceil "$line" cburst "$burst"
        tc -n "$from" class add dev eth0 parent 1:1 classid 1:20 htb rate 1mbit ceil "$between" cburst "$burst"
        tc -n "$from" filter add dev eth0 parent 1: protocol ip u32 match ip dst "$to/32" flowid 1:20
    done
}

run() {
    ip netns pids dear1 > /dev/null 2>&1 || fail "no hosts: $0 up $hosts RATE"
    HOSTS_TMP=$(mktemp -d) ranks=${RANKS_PER_HOST:-1} list=
    export HOSTS_TMP
    trap 'rm -rf "$HOSTS_TMP"' EXIT
    for i in $(seq 1 "$hosts"); do list=$list,$net.$i:$ranks; done
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
    unset PRTE_MCA_rmaps_default_mapping_policy  # of local.env: with it all ranks go to the first host
    export PRTE_MCA_plm_ssh_agent="$self enter" PRTE_MCA_prte_if_include=eth0 PRTE_MCA_hwloc_default_binding_policy=none
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_mpi_yield_when_idle=1
    export GLOO_SOCKET_IFNAME=eth0 MASTER_ADDR=$net.1
    status=0
    mkdir "$HOSTS_TMP/dear1"
    timeout --foreground -k 10 "${LIMIT:-600}" ip netns exec dear1 unshare --uts sh -c \
        "hostname dear1; export TMPDIR=$HOSTS_TMP/dear1"'; exec "$@"' sh \
        ${MPIRUN:-mpirun} --host "${list#,}" -n $((hosts * ranks)) "$@" || status=$?
    [ $status != 124 ] || echo "$0: stopped after ${LIMIT:-600} s" >&2
    return $status
}

case $verb in
up) [ $# = 1 ] || fail "usage: $usage"; up "$1"; trap - EXIT ;;
run) [ $# -ge 1 ] || fail "usage: $usage"; run "$@" ;;
down) down ;;
with)
    [ $# -ge 2 ] || fail "usage: $usage"
    up "$1"; shift
    trap down EXIT
    status=0
    (run "$@") || status=$?
    exit $status ;;
*) fail "usage: $usage" ;;
esac
