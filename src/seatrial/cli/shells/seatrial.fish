# fish completion of seatrial. Made by: seatrial --completion fish
function __seatrial_words
    set -l typed (commandline -opc)
    set -l word (commandline -ct)
    set -l flag (string match -r -- '^--[^=]+=' "$word")
    set -l path (string sub -s (math 1 + (string length -- "$flag")) -- "$word")
    # As the program gets it: without an open quote, and without what stands for one letter.
    set -l meant (string unescape -- "$word"; or string unescape -- "$word'"; or string unescape -- "$word\"")
    for line in ($typed[1] --completion words $typed[2..-1] "$meant" 2>/dev/null)
        switch $line
            case ':files*'
                printf '%s\n' "$flag"(complete -C "__seatrial_no_command $path")
            case ':folders*'
                printf '%s\n' "$flag"(complete -C "__seatrial_no_command $path" | string match -r '.*/$')
            case '*'
                echo $line
        end
    end
end
complete -c seatrial -f -a '(__seatrial_words)'
