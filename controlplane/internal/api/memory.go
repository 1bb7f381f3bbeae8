package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/access"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/room"
)

const (
	// maxHeld bounds the bytes that are held for callers: of bodies that come in or
	// wait to be judged, and of answers that go out.
	maxHeld = 64 << 20
	// maxJudgingWait is how long a request waits to be judged.
	maxJudgingWait = 10 * time.Second
	// uncounted bytes of each body do not count, so that senders of large ones do
	// not keep out a policy of common size.
	uncounted = 16 << 10
)

// errBusy says that there is no room or no time for a request now.
var errBusy = later("2", errors.New("the server is busy with other requests: try again in 2 s"))

// holder is whom room is counted for.
func holder(ctx context.Context) string {
	caller := access.FromContext(ctx)
	return cmp.Or(caller.Name, caller.Address)
}

// answerLarge answers with a body of about so many bytes as JSON. A caller may read
// it slowly, so it counts until it is written.
func (s *server) answerLarge(w http.ResponseWriter, r *request, bytes int, body any) error {
	who, bytes := holder(r.Context()), min(bytes, room.OfOne(maxHeld))
	if !s.held.Take(who, bytes) {
		return errBusy
	}
	defer s.held.Free(who, bytes)
	answer(w, http.StatusOK, body)
	return nil
}

// read reads a body. A slow caller holds room for about what it sent, never for what it could
// send. Call free in any case.
func (s *server) read(w http.ResponseWriter, r *http.Request, of *body) (text []byte, free func(), err error) {
	body := http.MaxBytesReader(w, r.Body, int64(of.maxBytes))
	text = make([]byte, 0, uncounted)
	who, taken := holder(r.Context()), 0
	free = func() { s.held.Free(who, taken) }
	for {
		if len(text) == cap(text) {
			size := min(2*cap(text), of.maxBytes+1)
			if !s.held.Take(who, size-taken) {
				return nil, free, errBusy
			}
			taken = size
			text = append(make([]byte, 0, size), text...)
		}
		n, err := body.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		switch _, large := errors.AsType[*http.MaxBytesError](err); {
		case err == nil:
		case errors.Is(err, io.EOF):
			return text, free, nil
		case large:
			return nil, free, refusal(http.StatusRequestEntityTooLarge, of.tooLarge, of.maxBytes)
		default:
			return nil, free, badRequest("read the body: %w", err)
		}
	}
}

// turn lets one caller go on at a time. The others wait that long.
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
