package api

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"
)

// maxJudgingWait is how long a request waits to be judged.
const maxJudgingWait = 10 * time.Second

// errBusy says that there is no time for a request now.
var errBusy = later("2", errors.New("the server is busy with other requests: try again in 2 s"))

// turn lets one caller go on at a time, because what it does takes memory. The others wait
// that long.
type turn struct {
	*semaphore.Weighted
	wait time.Duration
}

func newTurn(wait time.Duration) turn { return turn{semaphore.NewWeighted(1), wait} }

// take waits for the turn until the caller has gone or too long.
func (t turn) take(ctx context.Context) (free func(), err error) {
	waiting, leave := context.WithTimeoutCause(ctx, t.wait, errBusy)
	defer leave()
	if t.Acquire(waiting, 1) != nil {
		return nil, context.Cause(waiting)
	}
	return func() { t.Release(1) }, nil
}
