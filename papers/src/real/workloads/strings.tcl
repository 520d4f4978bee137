# strings.tcl N: an array of N strings and a list; random reads and updates; prints what it saw.
# Three of four choices fall on an eighth of the strings, which lie anywhere.
proc dice {below} {
    global state
    set state [expr {($state * 1103515245 + 12345) & 0x7fffffff}]
    return [expr {($state >> 8) % $below}]
}
proc main {count} {
    global state
    set state 1
    for {set i 0} {$i < $count} {incr i} {
        set strings($i) "string $i [string repeat [dice 100000], 24]"
    }
    set seen 0
    for {set turn 0} {$turn < $count} {incr turn} {
        set below [expr {[dice 4] ? $count / 8 : $count}]
        set i [expr {[dice $below] * 7919 % $count}]
        set seen [expr {($seen * 31 + [string length $strings($i)] + $turn) & 0xfffffff}]
        if {$turn % 8 == 0} {
            set strings($i) "string $i, at $turn [string repeat [dice 100000], 24]"
        }
    }
    set sum 0
    foreach i [lsort -integer [array names strings]] {
        incr sum [string length $strings($i)]
    }
    puts "$count $seen $sum"
}
main [lindex $argv 0]
