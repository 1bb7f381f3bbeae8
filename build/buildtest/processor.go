package buildtest

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ThreadTime is the processor time that the calling thread has used so far. What
// else runs on the machine does not count. Call runtime.LockOSThread before.
func ThreadTime() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0, fmt.Errorf("read a clock of processor time: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// machineTime is the processor time that all programs on this machine have used so
// far, with what its host took from it, and all that there was, in steps of
// 10 ms. Interrupts count as nobody's: those of the network are the sender's. Only Linux says it.
func machineTime() (used, all time.Duration, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	var user, nice, system, idle, wait, irq, soft, stolen int64 // ticks
	if _, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d",
		&user, &nice, &system, &idle, &wait, &irq, &soft, &stolen); err != nil {
		return 0, 0, fmt.Errorf("read /proc/stat: %w", err)
	}
	const tick = time.Second / 100
	busy := user + nice + system + stolen
	return time.Duration(busy) * tick, time.Duration(busy+idle+wait+irq+soft) * tick, nil
}
