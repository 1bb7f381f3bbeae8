package decision

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

const (
	coreStreams = 8
	coreBatch   = 64     // asks of a message
	coreKeys    = 10_000 // of all streams
	coreTime    = 3 * time.Second
)

// coreRun is what one quota service on one core did.
type coreRun struct {
	Rate      float64 `json:"rate"`       // asks answered a second
	ServiceUs float64 `json:"service_us"` // CPU for an ask
	RedisUs   float64 `json:"redis_us"`
}

// coreCase is a store of the service.
type coreCase struct {
	Name string    `json:"name"`
	Runs []coreRun `json:"runs"`
}

// The stores.
const (
	storeMemory = "memory"
	storeRedis  = "Redis"
)

// core asks a quota service that has the first core for itself as fast as it
// answers.
func (b *bench) core(ctx context.Context) (found []coreCase, err error) {
	s, err := b.startService(ctx)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	for _, store := range []string{storeMemory, storeRedis} {
		c := coreCase{Name: store}
		for range b.rounds {
			run, err := b.coreRun(ctx, s, store)
			if err != nil {
				return found, err
			}
			c.Runs = append(c.Runs, run)
			fmt.Printf("store %s: %.0f asks/s, service %.2f µs, Redis %.2f µs\n", store, run.Rate, run.ServiceUs, run.RedisUs)
		}
		found = append(found, c)
	}
	return found, nil
}

func (b *bench) coreRun(ctx context.Context, s *service, store string) (run coreRun, err error) {
	url := store
	if store == storeRedis {
		url = "redis://" + s.redisAt
	}
	q, err := b.startQuota(ctx, url, b.envoyCores...)
	if err != nil {
		return run, err
	}
	defer q.Kill()
	pids := []int{q.Pid(), s.redis.Pid()}
	before, err := cpuTimes(pids)
	if err != nil {
		return run, err
	}
	began := time.Now()
	n, err := askAll(ctx, q.address(), began.Add(coreTime))
	if err != nil {
		return run, err
	}
	took := time.Since(began)
	after, err := cpuTimes(pids)
	us := func(i int) float64 {
		return round(float64((after[i] - before[i]).Nanoseconds()) / 1e3 / float64(max(n, 1)))
	}
	run = coreRun{Rate: round(float64(n) / took.Seconds()), ServiceUs: us(0)}
	if store == storeRedis {
		run.RedisUs = us(1)
	}
	return run, err
}

// askAll asks on all streams, and returns how many asks were granted.
func askAll(ctx context.Context, address string, until time.Time) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*coreTime)
	defer cancel()
	granted, errs := make([]int, coreStreams), make([]error, coreStreams)
	var asking sync.WaitGroup
	for i := range granted {
		asking.Go(func() { granted[i], errs[i] = askStream(ctx, address, uint64(i), until) })
	}
	asking.Wait()
	for _, g := range granted {
		n += g
	}
	return n, errors.Join(errs...)
}

// askStream asks on a connection of its own.
func askStream(ctx context.Context, address string, number uint64, until time.Time) (granted int, err error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+quota.Service+"/"+quota.Method)
	if err != nil {
		return 0, err
	}
	return askOn(stream, number, until)
}

// askOn sends one message after the answers to the one before, as a worker does.
func askOn(stream grpc.ClientStream, number uint64, until time.Time) (granted int, err error) {
	m := quota.Asks{
		Domain: "bench", Process: number + 1,
		Definitions: []quota.Definition{{
			ID: 1, Counter: [16]byte{1}, Lease: quota.LeaseAuto,
			Windows: []limit.Window{{Algorithm: limit.FixedWindow, Limit: 1_000_000_000, PeriodNs: int64(time.Hour)}},
		}},
	}
	for id := uint32(0); id == 0 || time.Now().Before(until); {
		m.Asks = m.Asks[:0]
		for range coreBatch {
			p := quota.Part{Definition: 1, Cost: 1, Waiting: 1}
			binary.LittleEndian.PutUint64(p.Key[:], number*coreKeys/coreStreams+uint64(id)%(coreKeys/coreStreams))
			id++
			m.Asks = append(m.Asks, quota.Ask{ID: id, Parts: []quota.Part{p}})
		}
		if err := stream.SendMsg(m.Append(nil)); err != nil {
			return granted, err
		}
		m.Domain, m.Process, m.Definitions = "", 0, nil
		for missing := coreBatch; missing > 0; {
			var bytes []byte
			if err := stream.RecvMsg(&bytes); err != nil {
				return granted, err
			}
			var answers quota.Answers
			if err := answers.Decode(bytes); err != nil {
				return granted, err
			}
			for _, a := range answers.Answers {
				if a.Result != quota.Granted {
					return granted, fmt.Errorf("an ask had result %d", a.Result)
				}
			}
			missing -= len(answers.Answers)
			granted += len(answers.Answers)
		}
	}
	return granted, nil
}

// raw passes messages as they are.
type raw struct{}

// Marshal implements encoding.CodecV2.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (raw) Name() string { return "proto" }
