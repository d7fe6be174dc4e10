#!/bin/bash
# From a fresh Debian with Rust to mail you can `ls` and `cat`.
#
#   mount-scripts/quickstart.sh              install what is missing, build, show a demo, mount ~/mail
#   mount-scripts/quickstart.sh --demo       the same without mounting ~/mail: leaves nothing mounted
#
# Options:
#   --me NAME    who you are in ~/mail (default: $MSGFS_ME, your configuration, else your login name); your
#                configuration says so from then on, unless it names somebody already
#   --dir DIR    where to mount your mail (default: ~/mail)
#   --bin FILE   use this msgfs instead of building one
#
# It can be run again at any time: what is there already is left as it is. It works as root and as a
# normal user; a normal user needs sudo only if a package is missing.
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
say() { printf '\n== %s\n' "$*"; }

# Runs a command and says how long it took. It shows its own progress.
timed() {
    local name=$1 began=$SECONDS
    shift
    "$@"
    printf '   %s: %d s\n' "$name" $((SECONDS - began))
}
die() {
    printf 'quickstart: %s\n' "$*" >&2
    exit 1
}

demo_only=false
me=
dir=$HOME/mail
bin=
while (($#)); do
    case $1 in
        --demo) demo_only=true ;;
        --me | --dir | --bin)
            (($# > 1)) || die "$1 needs a value"
            case $1 in
                --me) me=$2 ;;
                --dir) dir=$2 ;;
                --bin) bin=$2 ;;
            esac
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) die "unknown option $1; see $0 --help" ;;
    esac
    shift
done
case $dir in /*) ;; *) dir=$PWD/$dir ;; esac
case $bin in '' | /*) ;; *) bin=$PWD/$bin ;; esac
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin

# --- what this machine lacks --------------------------------------------------------------------

as_root() {
    if ((EUID == 0)); then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root, and there is no sudo; run as root: $*"
    fi
}

packages=()
command -v fusermount3 >/dev/null || packages+=(fuse3)
if [[ -z $bin ]]; then
    command -v cc >/dev/null || packages+=(gcc libc6-dev)
    command -v cargo >/dev/null ||
        die "there is no cargo; install Rust from https://rustup.rs and run this again"
fi
if ((${#packages[@]})); then
    command -v apt-get >/dev/null ||
        die "missing: ${packages[*]}, and this is no Debian; install them with your package manager"
    say "Installing ${packages[*]} with apt-get"
    timed 'package lists' as_root apt-get update -qq
    timed installed as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${packages[@]}"
fi

[[ -e /dev/fuse ]] || { ((EUID == 0)) && modprobe fuse 2>/dev/null; } || true
[[ -e /dev/fuse ]] || die "there is no /dev/fuse. Load it with 'modprobe fuse' as root; start a container \
with '--device /dev/fuse --cap-add SYS_ADMIN'; or use 'msgfs ls', 'msgfs cat' and 'msgfs write', which need no FUSE."
{ : <>/dev/fuse; } 2>/dev/null ||
    die "/dev/fuse cannot be opened by $(id -un). Mend it as root with: chmod 666 /dev/fuse"

# --- build --------------------------------------------------------------------------------------

if [[ -z $bin ]]; then
    # Without a terminal cargo shows no bar, but a line for each crate.
    quiet=()
    [[ -t 2 ]] || quiet=(--quiet)
    cd -- "$here"
    say "Downloading the crates that msgfs is built from"
    # The build says what is missing, if anything is.
    timed downloaded cargo fetch "${quiet[@]}" --locked --target "$(rustc -vV | sed -n 's/^host: //p')" || true
    say "Building msgfs for this machine; what carries mail to other machines is left out of this first build"
    timed built cargo build "${quiet[@]}" --profile quick --no-default-features --features search --locked
    cd -- "$OLDPWD"
    bin=${CARGO_TARGET_DIR:-$here/target}/quick/msgfs
    case $bin in /*) ;; *) bin=$here/$bin ;; esac
fi
[[ -x $bin ]] || die "$bin is not a program"

# --- the demo: two agents, each with a mail folder of its own ---------------------------------------
#
# mount-scripts/picture draws it. The names are only names: no program but msgfs is started.

demo=$(mktemp -d "${TMPDIR:-/tmp}/msgfs-demo.XXXXXX")
mkdir "$demo/bin"
ln -s "$bin" "$demo/bin/msgfs"

# Runs a command with a home of its own below $demo and without your variables, which may name stores: no mail, key or
# setting of yours is touched.
in_demo() {
    env -i HOME="$demo" PATH="$demo/bin:$PATH" LANG="${LC_ALL:-${LANG:-C}}" TERM="${TERM:-dumb}" "$@"
}

mounted() { findmnt -rn --mountpoint "$1" >/dev/null 2>&1; }

end_demo() {
    local status=$? who
    if ((status != 0)); then
        # What went wrong is in files that are about to go.
        printf '\nquickstart: the demo failed; what msgfs says about it:\n' >&2
        for who in claude codex; do
            timeout 5 tail -n +1 "$demo/$who/status.txt" "$demo/$who"/outbox/*.error 2>/dev/null >&2 || true
        done
    fi
    for who in claude codex; do
        mounted "$demo/$who" || continue
        in_demo "$bin" umount "$demo/$who" >/dev/null 2>&1 || fusermount3 -u -z -q "$demo/$who" || true
    done
    for who in claude codex; do
        if mounted "$demo/$who"; then
            printf 'quickstart: %s is still mounted; end it with: fusermount3 -u -z %s\n' "$demo/$who" "$demo/$who" >&2
            return
        fi
    done
    rm -rf --one-file-system -- "$demo"
}
trap end_demo EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run WHO COMMAND: shows a command as WHO types it in its mail folder, then what it prints.
run() {
    printf '\n  %s$ %s\n' "$1" "$2"
    (cd "$demo/$1" && in_demo bash -c "$2" 2>&1) | sed 's/^/  /'
}

# arrives FOLDER PATTERN: waits until a folder of the demo has a file of that name; prints the name.
arrives() {
    local found try
    for ((try = 0; try < 100; try++)); do
        found=$(timeout 5 find "$demo/$1" -maxdepth 1 -name "$2" -printf '%f\n' -quit)
        [[ -z $found ]] || break
        sleep 0.05
    done
    [[ -n $found ]] || die "nothing arrived in $1 within 5 seconds"
    printf '%s\n' "$found"
}

say "Two agents, claude and codex, get a mail folder each"
run '' 'msgfs mount --me claude ~/claude'
run '' 'msgfs mount --me codex ~/codex'

say "claude writes to codex"
run claude 'echo "The schema change is ready. Can you review it?" > outbox/codex'
name=$(arrives codex/inbox '*-claude-*.txt')
id=${name%.txt}
id=${id##*-}

say "codex reads it, and answers"
run codex 'cat inbox/*'
run codex "echo \"Looks good. Why can token be null?\" > inbox/$id.reply"
arrives claude/inbox '*-codex-*.txt' >/dev/null

say "claude reads the answer; what was read leaves inbox/ and stays everywhere else"
run claude 'cat inbox/* | tail -n 1'
run claude 'ls inbox sent/* threads/*'
say "The demo worked; its two folders are unmounted and removed again"
end_demo
trap - EXIT

# --- your own mail --------------------------------------------------------------------------------

if $demo_only; then
    printf '\nTo mount your own mail at %s, run this again without --demo.\n' "$dir"
    exit 0
fi

say "Your own mail"
config=${XDG_CONFIG_HOME:-$HOME/.config}/msgfs/config.toml
if findmnt -rn --mountpoint "$dir" -t fuse.msgfs,fuse >/dev/null 2>&1 && [[ -r $dir/README.txt ]]; then
    printf '%s is mounted already.\n' "$dir"
else
    who=()
    [[ -z $me ]] || who=(--me "$me")
    # A table, such as [[store]], may have a `me` of its own.
    if [[ -z $(sed -n '/^[[:space:]]*\[/q; /^[[:space:]]*me[[:space:]]*=/p' "$config" 2>/dev/null) ]]; then
        # Without this line the name of the current folder would decide, in each folder another one.
        who=(--me "${me:-${MSGFS_ME:-$(id -un)}}")
        "$bin" init "${who[@]}" >/dev/null || die "the configuration cannot be written (reason above)"
    fi
    "$bin" mount "${who[@]}" "$dir" ||
        die "mounting $dir failed (reason above); another place: $0 --dir DIR"
fi
cat <<END

  Read how to use it:    cat $dir/README.txt
  Send a message:        echo hello > $dir/outbox/NAME
  Read your mail:        cat $dir/inbox/*
  End it:                $bin umount $dir
  Have msgfs in PATH, optimised, with links to other machines (takes minutes):
                         cargo install --locked --path $here
  Mount it at log-in:    see mount-scripts/msgfs.service
END
