package conns

import (
	"fmt"
	"syscall"
)

// Shares are the bounds of two listeners of one process.
type Shares struct{ XDS, HTTP int }

const (
	// reserve is what stays free for the store, files that are read again, and
	// connections that the process makes.
	reserve = 24
	// minOpen is how many connections a listener needs at least.
	minOpen = 8
	// maxXDS and maxHTTP bound memory where files are plenty: a connection
	// takes up to 100 KB.
	maxXDS, maxHTTP = 10_000, 1_000
)

// Share divides the files that this process may open: a quarter for HTTP, the
// rest for xDS.
func Share() (Shares, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return Shares{}, fmt.Errorf("read the limit of open files: %w", err)
	}
	return share(limit.Cur)
}

func share(files uint64) (Shares, error) {
	if files < reserve+4*minOpen {
		return Shares{}, fmt.Errorf("this process may open %d files, it needs %d: raise ulimit -n", files, reserve+4*minOpen)
	}
	n := int(min(files, 1<<20)) - reserve
	return Shares{XDS: min(n-n/4, maxXDS), HTTP: min(n/4, maxHTTP)}, nil
}
