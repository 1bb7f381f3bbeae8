//go:build !linux

package buildtest

import "time"

var start = time.Now()

// ThreadTime is the time that has passed, where threads have no clock.
func ThreadTime() (time.Duration, error) { return time.Since(start), nil }
