# shellcheck shell=bash
# A clock for the Postgres of a breakable stack, which can be moved while Postgres runs. See
# clock.c. The fault runner writes the file.

CLOCK_BYTES=$((257 * 24)) # what clock.c maps

clock_source() { printf '%s' "$ROOT/scripts/lib/clock.c"; }
clock_library() { printf '%s' "$(postgres_home)/clock.so"; }
clock_file() { printf '%s' "$(postgres_home)/clock"; }

# In Postgres's folder, which its user can enter. A file of zeros means the machine's clock.
clock_prepare() {
  local library file
  library=$(clock_library)
  file=$(clock_file)
  if [[ ! $library -nt $(clock_source) ]]; then
    cc -shared -fPIC -O2 -Wall -Wextra -o "$library.new" "$(clock_source)" -ldl ||
      die "postgres: its clock could not be built"
    mv "$library.new" "$library"
  fi
  [[ -e $file ]] || head -c "$CLOCK_BYTES" /dev/zero >"$file"
  postgres_owns "$library" "$file"
}

# The words before Postgres's command line that give Postgres its clock, one per line.
clock_words() { printf '%s\n' env "LD_PRELOAD=$(clock_library)" "PUNCTUAL_CLOCK=$(clock_file)"; }
