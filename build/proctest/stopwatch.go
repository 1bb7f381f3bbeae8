package proctest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// Slowdown is how much longer a busy thread takes now than it needs of processor
// time. It scales a time that a test cannot measure while it passes.
func Slowdown() (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := ThreadTime()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for {
		now, err := ThreadTime()
		if err != nil {
			return 0, err
		}
		if used := now - before; used >= 50*time.Millisecond {
			return max(1, float64(time.Since(began))/float64(used)), nil
		}
	}
}

// Stopwatch measures how long something takes on a machine of its own: the time
// that passes, without the share of the processors that other programs take.
// What the test itself and its children use counts in full, so a program that
// starves itself is slow on any machine. Where the system does not say who uses
// the processors, all time counts.
type Stopwatch struct {
	children []int
	began    time.Time
	before   usage
}

// usage is processor time: of the test, of all programs, and all that there was.
type usage struct {
	own, used, all time.Duration
}

// maxSlowdown bounds how much longer a test may wait.
const maxSlowdown = 30

// StartStopwatch starts a stopwatch. The processes are children of the test.
func StartStopwatch(children ...int) *Stopwatch {
	s := &Stopwatch{children: children, began: time.Now()}
	s.before, _ = s.read()
	return s
}

// Elapsed is the time so far.
func (s *Stopwatch) Elapsed() time.Duration {
	passed := time.Since(s.began)
	now, err := s.read()
	if err != nil {
		return passed
	}
	return alone(passed, usage{now.own - s.before.own, now.used - s.before.used, now.all - s.before.all})
}

// String says both times.
func (s *Stopwatch) String() string {
	return fmt.Sprintf("%s (%s beside other programs)",
		s.Elapsed().Round(time.Millisecond), time.Since(s.began).Round(time.Millisecond))
}

// Within returns a context that ends when so much time has elapsed.
func (s *Stopwatch) Within(parent context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		for {
			left := limit - s.Elapsed()
			if left <= 0 {
				cancel(fmt.Errorf("%w after %s", context.DeadlineExceeded, s))
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(left, 10*time.Millisecond)):
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

func (s *Stopwatch) read() (u usage, err error) {
	// The test's own time is read last: it must not count as that of others.
	u.used, u.all, err = machineTime()
	if err != nil {
		return u, err
	}
	for _, pid := range append([]int{os.Getpid()}, s.children...) {
		used, err := child.CPUTime(pid)
		if err != nil {
			return u, err
		}
		u.own += used
	}
	return u, nil
}

// alone is how much of the time would have passed without other programs.
func alone(passed time.Duration, u usage) time.Duration {
	others := max(0, u.used-u.own)
	share := min(float64(others)/float64(max(u.all, 1)), 1-1./maxSlowdown)
	return passed - time.Duration(share*float64(passed))
}

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
