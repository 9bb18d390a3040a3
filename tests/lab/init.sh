#!/bin/busybox sh
# The first process of a guest. Its / is the / of the machine that runs the lab, over 9p and read-only, the folder of tools
# over that, and over both a tmpfs, which takes what is written: so checkout, virtual environment and interpreter are at
# the same paths inside. /out is a folder of the outside, which is written through.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in /modules/*.ko; do $b insmod "$module" || echo "lab: cannot load $module"; done
for word in $($b cat /proc/cmdline); do
    case $word in lab.*) export "${word#lab.}" ;; esac
done
echo "lab: up"
[ -z "$probe" ] || $b poweroff -f
share=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o ro,$share,cache=loose root /ro || $b poweroff -f
$b mount -t 9p -o ro,$share,cache=loose tools /tools || $b poweroff -f
$b mount -t tmpfs written /rw
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/tools:/ro,upperdir=/rw/upper,workdir=/rw/work overlay /new
for top in proc sys dev; do $b mount --move /$top /new/$top; done
$b mkdir -p /new/dev/pts /new/dev/shm /new/out "/new/lib/modules/$release"
$b mount -t devpts pts /new/dev/pts
$b mount -t tmpfs shm /new/dev/shm
$b ln -sf /proc/self/fd /new/dev/fd
$b mount -o bind "/ro$modules" "/new/lib/modules/$release"
$b mount -t 9p -o rw,$share,cache=none out /new/out
$b cat >/new/lab-init <<'SECOND'
#!/bin/sh
# What a node has for itself, and nothing of the outside's.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
for top in /run /var/lib /var/log /etc/cni /etc/kubernetes /host/etc/cni /host/etc/kubernetes; do
    [ ! -d "$top" ] || mount -t tmpfs tmpfs "$top"
done
mkdir -p /run/netns
echo lab >/proc/sys/kernel/hostname
sysctl -q -w net.ipv6.conf.default.accept_dad=0 # else an address would wait for a second that is long in emulation
ip link set lo up
sh /out/command </dev/null
echo $? >/out/status
sync
echo o >/proc/sysrq-trigger
sleep 60
SECOND
exec $b switch_root /new /bin/sh /lab-init
