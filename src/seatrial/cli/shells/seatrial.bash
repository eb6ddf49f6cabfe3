# bash completion of seatrial. Made by: seatrial --completion bash

# Words as typed, quotes taken away: bash has split them at "=" and ":", which stand in device=0 and HOST:CONTAINER.
_seatrial_words() {
    local i letter quote="" word="" begun=""
    words=() opened=0
    for ((i = 0; i < ${#1}; i++)); do
        letter="${1:i:1}"
        if [[ -z $quote && $letter == [[:space:]] ]]; then
            [[ -n $begun ]] && words+=("$word")
            word="" begun=""
        elif [[ $letter == "$quote" ]]; then
            quote=""
        elif [[ -z $quote && $letter == [\'\"] ]]; then
            quote="$letter" begun=yes opened=${#word}
        else
            if [[ $letter == \\ && $quote != \' ]]; then
                ((i += 1))
                letter="${1:i:1}"
            fi
            word+="$letter" begun=yes
        fi
    done
    words+=("$word")
    open="$quote"
}

_seatrial() {
    local line value words=() open="" opened word prefix="" files="" found=() here
    _seatrial_words "${COMP_LINE:0:COMP_POINT}"
    word="${words[${#words[@]}-1]}"
    # What stands before the part that readline replaces.
    if [[ -n $open ]]; then
        prefix="${word:0:opened}"
    else
        case "$word" in *[=:]*) prefix="${word%"${word##*[=:]}"}" ;; esac
    fi
    while IFS= read -r line; do
        value="${line%%$'\t'*}"
        case "$value" in
            :files) files=-f ;;
            :folders) files=-d ;;
            *) found+=("${value#"$prefix"}") ;;
        esac
    done < <("${COMP_WORDS[0]}" --completion words "${words[@]:1}" 2>/dev/null)
    COMPREPLY=()
    if [[ -n $files ]]; then  # readline quotes these itself
        compopt -o filenames 2>/dev/null
        COMPREPLY=("${found[@]}")
        while IFS= read -r here; do COMPREPLY+=("$here"); done < <(compgen "$files" -- "${word#"$prefix"}")
    elif [[ -n $open ]]; then
        COMPREPLY=("${found[@]}")
    else
        for value in "${found[@]}"; do
            printf -v value %q "$value"
            COMPREPLY+=("$value")
        done
    fi
}
complete -F _seatrial seatrial
