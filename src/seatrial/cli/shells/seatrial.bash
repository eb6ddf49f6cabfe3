# bash completion of seatrial. Made by: seatrial completion bash
_seatrial() {
    local word line value candidates=() here
    # Words as typed: bash has split them at "=" and ":", which stand in device=0 and HOST:CONTAINER.
    local typed="${COMP_LINE:0:COMP_POINT}" words=()
    read -r -a words <<< "$typed"
    case "$typed" in *[[:space:]]) words+=("") ;; esac
    word="${words[${#words[@]}-1]}"
    local program="${COMP_WORDS[0]}" prefix=""
    case "$word" in *[=:]*) prefix="${word%"${word##*[=:]}"}" ;; esac
    COMPREPLY=()
    while IFS= read -r line; do
        value="${line%%$'\t'*}"
        case "$value" in
            :files) compopt -o filenames 2>/dev/null; while IFS= read -r here; do COMPREPLY+=("$here"); done < <(compgen -f -- "${word#"$prefix"}") ;;
            :folders) compopt -o filenames 2>/dev/null; while IFS= read -r here; do COMPREPLY+=("$here"); done < <(compgen -d -- "${word#"$prefix"}") ;;
            *) COMPREPLY+=("${value#"$prefix"}") ;;
        esac
    done < <("$program" completion words "${words[@]:1}" 2>/dev/null)
}
complete -F _seatrial seatrial
