# fish completion of seatrial. Made by: seatrial completion fish
function __seatrial_words
    set -l typed (commandline -opc)
    set -l word (commandline -ct)
    for line in ($typed[1] completion words $typed[2..-1] "$word" 2>/dev/null)
        switch $line
            case ':files*'
                __fish_complete_path "$word"
            case ':folders*'
                __fish_complete_directories "$word" ''
            case '*'
                echo $line
        end
    end
end
complete -c seatrial -f -a '(__seatrial_words)'
