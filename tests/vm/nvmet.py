"""The NVMe target of Linux, as a storage system in a guest."""

# A storage system with two NVMe disks that have reservations. The caller adds its port 1.
STORAGE = r"""
mount -t configfs configfs /sys/kernel/config
cd /sys/kernel/config/nvmet
mkdir subsystems/store
echo 1 >subsystems/store/attr_allow_any_host
for number in 1 2; do
	space=subsystems/store/namespaces/$number
	mkdir $space
	echo -n /dev/vd$(echo $number | tr 12 ab) >$space/device_path
	echo 0000000$number-0000-4000-8000-000000000000 >$space/device_uuid
	echo 1 >$space/resv_enable
	echo 1 >$space/enable
done
mkdir ports/1
"""
