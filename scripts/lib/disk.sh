# shellcheck shell=bash
# A small disk for the Postgres of a breakable stack: a tmpfs for a tablespace, which can be filled
# and freed. A mount needs root. Without root, the stack does not come up.

DISK_SIZE=4g # a limit, not a reservation: it takes what is in it

disk_folder() { printf '%s' "$(postgres_home)/disk"; }
disk_is_mounted() { mountpoint -q "$(disk_folder)"; }

disk_mount() {
  local folder
  folder=$(disk_folder)
  disk_is_mounted && return
  mkdir -p "$folder"
  mount -t tmpfs -o "size=$DISK_SIZE,mode=700" punctual-disk "$folder" ||
    die "cannot mount a tmpfs on $folder (it takes root): without it a full disk cannot be tried"
  postgres_owns "$folder"
}

# Fills the disk, which is hardly larger than its contents. Writes in the meantime need a little
# more space, so each attempt leaves more free than the one before. The disk is soon full anyway.
disk_full() {
  local used
  used=$(df --output=used --block-size=4k "$(disk_folder)" | tail -n 1)
  DISK_ROOM=$((${DISK_ROOM:-16} * 2)) # in blocks of 4 KiB
  mount -o "remount,size=$(((used + DISK_ROOM) * 4))k" "$(disk_folder)" 2>/dev/null
}
disk_free() { mount -o "remount,size=$DISK_SIZE" "$(disk_folder)"; }

disk_purge() {
  ! disk_is_mounted || umount "$(disk_folder)" || umount --lazy "$(disk_folder)"
}
