package redisstore

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// lane is a server that keys are on. A batch goes to one.
type lane struct {
	room chan struct{} // holds one for each batch under way
}

func newLane() *lane { return &lane{room: make(chan struct{}, maxUnderWay)} }

const slots = 16384

// lanes knows which slots of a Cluster are together on a server. It may be wrong,
// because the client finds each key's server itself. Without a Cluster there is one.
type lanes struct {
	whole  *lane
	bySlot atomic.Pointer[[slots]*lane]

	refreshing atomic.Bool
	refreshed  time.Time        // touched while refreshing
	byServer   map[string]*lane // touched while refreshing
}

func (l *lanes) of(slot uint16) *lane {
	if known := l.bySlot.Load(); known != nil && int(slot) < slots && known[slot] != nil {
		return known[slot]
	}
	return l.whole
}

// refresh asks the Cluster for its slots, when it was not asked for a while.
func (l *lanes) refresh(ctx context.Context, client rueidis.Client) {
	if !l.refreshing.CompareAndSwap(false, true) {
		return
	}
	if time.Since(l.refreshed) < refreshEvery {
		l.refreshing.Store(false)
		return
	}
	l.refreshed = time.Now()
	go func() {
		defer l.refreshing.Store(false)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout)
		defer cancel()
		if ranges, err := client.Do(ctx, client.B().ClusterSlots().Build()).ToArray(); err == nil {
			l.set(ranges)
		}
	}()
}

// set reads CLUSTER SLOTS: ranges of first slot, last slot, master, replicas.
func (l *lanes) set(ranges []rueidis.RedisMessage) {
	known := &[slots]*lane{}
	byServer := map[string]*lane{}
	for i := range ranges {
		parts, err := ranges[i].ToArray()
		if err != nil || len(parts) < 3 {
			continue
		}
		first, _ := parts[0].AsInt64()
		last, _ := parts[1].AsInt64()
		master, err := parts[2].ToArray()
		if err != nil || len(master) < 2 {
			continue
		}
		host, _ := master[0].ToString()
		port, _ := master[1].AsInt64()
		server := net.JoinHostPort(host, strconv.FormatInt(port, 10))
		if byServer[server] == nil {
			if byServer[server] = l.byServer[server]; byServer[server] == nil {
				byServer[server] = newLane()
			}
		}
		for slot := max(first, 0); slot <= min(last, slots-1); slot++ {
			known[slot] = byServer[server]
		}
	}
	l.byServer = byServer
	l.bySlot.Store(known)
}
