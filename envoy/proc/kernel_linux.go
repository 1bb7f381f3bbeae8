package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// ticksPerSecond is the unit of the times in /proc/PID/stat, USER_HZ, which
// Linux fixes at 100 on every architecture Go runs on.
const ticksPerSecond = 100

// CPU is the processor time Envoy has used so far, in steps of 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	// Fields 14 and 15: user and system time.
	user, err := p.statField(14)
	if err != nil {
		return 0, err
	}
	system, err := p.statField(15)
	if err != nil {
		return 0, err
	}
	return time.Duration(user+system) * (time.Second / ticksPerSecond), nil
}

// RSS is how many bytes of memory Envoy has resident.
func (p *Process) RSS() (uint64, error) {
	pages, err := p.statField(24)
	if err != nil {
		return 0, err
	}
	return uint64(pages) * uint64(os.Getpagesize()), nil
}

// statField reads one number of /proc/PID/stat; fields count from 1 as in
// proc(5). The second field, the name, may hold spaces and parentheses.
func (p *Process) statField(n int) (int64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return 0, fmt.Errorf("measure envoy: %w", err)
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	value, err := strconv.ParseInt(string(fields[n-3]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("measure envoy: %w", err)
	}
	return value, nil
}
