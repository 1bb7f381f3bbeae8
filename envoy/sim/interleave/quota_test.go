package interleave_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/sluice-ratelimit/sluice/controlplane/quotatest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// talk is the workers' talk with the quota service. A message is an access like those to shared
// data, and is answered at once.
type talk struct {
	service *quotatest.Service
	in      [maxWorkers + 1]*sim.Inbox
	running [maxWorkers + 1][]*sim.Exchange
	admits  int // requests that run now
	most    int // the largest number that ran at once
}

func newTalk(t *testing.T) talk {
	return talk{service: quotatest.New(t, func() int64 { return now })}
}

// peer is the service's end of a stream.
type peer struct {
	b      *bench
	vm     int
	in     *sim.Inbox
	stream *quotatest.Stream
}

func (b *bench) dial(c sim.Call, in *sim.Inbox) (sim.Peer, error) {
	if c.VM < 0 {
		return nil, errors.New("no request comes there")
	}
	b.quota.in[c.VM] = in
	return &peer{b, c.VM, in, b.quota.service.Open(b.t)}, nil
}

func (p *peer) Send(message []byte) {
	p.b.Park(p.vm, sim.Access{Key: []byte("quota service"), Write: true})
	if err := p.stream.Receive(message); err != nil {
		p.b.log = append(p.b.log, err.Error())
	}
	for answer := p.stream.Next(); answer != nil; answer = p.stream.Next() {
		p.in.Message(0, answer)
	}
}

func (p *peer) CloseSend() {}
func (p *peer) Cancel()    { p.stream.Close() }

// ask begins a request of a user, until it is at its upstream or denied.
func ask(user string) step {
	return step{now, func(b *bench, worker int) string {
		x, err := b.Start(worker, &sim.Request{Headers: [][2]string{{"x-user", user}}})
		if err != nil {
			return err.Error()
		}
		q := &b.quota
		q.in[worker].Deliver()
		if !x.Ended() {
			q.running[worker] = append(q.running[worker], x)
			q.admits++
			q.most = max(q.most, q.admits)
			return "200"
		}
		res, err := x.Finish()
		if err != nil {
			return err.Error()
		}
		return strconv.Itoa(res.Status)
	}}
}

// end delivers the answer of the worker's oldest request, if one runs.
func end() step {
	return step{now, func(b *bench, worker int) string {
		q := &b.quota
		if len(q.running[worker]) == 0 {
			return "none"
		}
		x := q.running[worker][0]
		q.running[worker] = q.running[worker][1:]
		q.admits--
		_, err := x.Finish()
		q.in[worker].Deliver()
		return fmt.Sprint(err)
	}}
}

// lastSlot: three workers ask the quota service for two slots, while some of these become free.
func lastSlot() scenario {
	slots := `{"name":"user","scope":"cluster","key":[{"header":"x-user"}],"algorithm":"concurrency","limits":["2"],` +
		`"on_unavailable":"deny"}`
	return scenario{
		name: "the last slot over all proxies", policy: slots, next: slots,
		setUp:    []step{ask("b"), end()},
		scripts:  [][]step{{ask("a"), end()}, {ask("a"), end()}, {ask("a"), ask("a"), end(), end()}},
		observed: []step{ask("a"), ask("a"), ask("a"), end(), end()},
		judge: func(o *outcome) error {
			if o.most > 2 {
				return fmt.Errorf("%d run at once", o.most)
			}
			isFree := fmt.Sprint(o.observed) == "[200 200 429 <nil> <nil>]"
			return expect(isFree, "not all slots are free in the end: %v", o.observed)
		},
	}
}
