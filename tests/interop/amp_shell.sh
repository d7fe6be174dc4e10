#!/bin/bash
# An AMP client of jq and openssl, as the public shell client and the specification's example do it.
#
#   amp_shell.sh key DIR                                    makes DIR/private.pem and DIR/public.pem
#   amp_shell.sh send KEY FROM TO SUBJECT BODY PARENT FILE  writes a message file as local delivery leaves it
#   amp_shell.sh verify PUBLIC FILE                         checks a message file; exit status tells
set -euo pipefail

die() {
    printf 'amp_shell.sh: %s\n' "$*" >&2
    exit 2
}

for tool in jq openssl base64; do
    command -v "$tool" >/dev/null || die "$tool is missing; install it with: apt-get install jq openssl coreutils"
done

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# What is signed: the envelope's fields and the hash of the sorted payload, without a newline.
covered() { # FROM TO SUBJECT PRIORITY PARENT PAYLOAD-JSON
    local hash
    hash=$(printf '%s' "$6" | openssl dgst -sha256 -binary | base64 -w 0)
    printf '%s|%s|%s|%s|%s|%s' "$1" "$2" "$3" "$4" "$5" "$hash"
}

sorted_payload() { # FILE
    # The command substitution takes off the newline that jq ends with.
    printf '%s' "$(jq -cS .payload "$1")"
}

make_key() {
    openssl genpkey -algorithm Ed25519 -out "$1/private.pem" 2>/dev/null
    openssl pkey -in "$1/private.pem" -pubout -out "$1/public.pem"
    chmod 600 "$1/private.pem"
}

send() {
    local key=$1 from=$2 to=$3 subject=$4 body=$5 parent=$6 file=$7 id now payload signature
    id=$(basename -- "$file" .json)
    now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    payload=$(jq -n --arg message "$body" '{type: "notification", message: $message, context: null}')
    covered "$from" "$to" "$subject" normal "$parent" "$(jq -cS . <<<"$payload")" >"$work/text"
    openssl pkeyutl -sign -inkey "$key" -rawin -in "$work/text" -out "$work/signature"
    signature=$(base64 -w 0 <"$work/signature")
    # Local delivery adds an empty list of attachments after signing.
    jq -n --arg id "$id" --arg from "$from" --arg to "$to" --arg subject "$subject" --arg now "$now" \
        --arg parent "$parent" --arg signature "$signature" --argjson payload "$payload" '{
            envelope: {version: "amp/0.1", id: $id, from: $from, to: $to, subject: $subject,
                priority: "normal", timestamp: $now, thread_id: $id,
                in_reply_to: (if $parent == "" then null else $parent end),
                expires_at: null, signature: $signature},
            payload: ($payload + {attachments: []}),
            metadata: {status: "unread", queued_at: $now, delivery_attempts: 0},
            local: {received_at: $now, status: "unread",
                security: {trust: "verified", injection_flags: [], wrapped: false, verified_at: $now}}
        }' >"$file"
}

verify() {
    local public=$1 file=$2
    covered "$(jq -r .envelope.from "$file")" "$(jq -r .envelope.to "$file")" \
        "$(jq -r .envelope.subject "$file")" "$(jq -r '.envelope.priority // "normal"' "$file")" \
        "$(jq -r '.envelope.in_reply_to // ""' "$file")" "$(sorted_payload "$file")" >"$work/text"
    jq -r .envelope.signature "$file" | base64 -d >"$work/signature"
    openssl pkeyutl -verify -pubin -inkey "$public" -rawin -in "$work/text" -sigfile "$work/signature"
}

case ${1:-} in
    key) make_key "${2:?DIR}" ;;
    send) send "${2:?KEY}" "${3:?FROM}" "${4:?TO}" "${5:?SUBJECT}" "${6?BODY}" "${7?PARENT}" "${8:?FILE}" ;;
    verify) verify "${2:?PUBLIC}" "${3:?FILE}" ;;
    *) die "unknown command: ${1:-none}" ;;
esac
