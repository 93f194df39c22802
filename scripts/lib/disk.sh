# shellcheck shell=bash
# A small disk for Postgres, of a breakable stack: a tmpfs for a tablespace, which can be made full and
# free again. To mount one takes root; where that is not to be had, the stack does not come up.

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

# Takes the room away: the disk is hardly larger than what is in it. What is written meanwhile takes a
# little more; so each try leaves more than the one before it, and that, too, is soon full.
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
