#compdef seatrial
# zsh completion of seatrial. Made by: seatrial --completion zsh
_seatrial() {
    local line value said files="" folders=""
    local -a shown
    while IFS= read -r line; do
        value="${line%%$'\t'*}"
        said="${line#*$'\t'}"
        case "$value" in
            :files) files=yes ;;
            :folders) folders=yes ;;
            *) value="${value//\\/\\\\}"; shown+=("${value//:/\\:}${said:+:$said}") ;;
        esac
    done < <("${(Q)words[1]}" --completion words "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    (( ${#shown} )) && _describe -t words 'seatrial' shown
    [[ "$PREFIX" == --*=* ]] && compset -P '*='
    [[ -n "$files" ]] && _files
    [[ -n "$folders" ]] && _files -/
}
compdef _seatrial seatrial
