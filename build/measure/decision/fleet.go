package decision

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/envoy"
	"github.com/sluice-ratelimit/sluice/envoy/proc"
	"github.com/sluice-ratelimit/sluice/envoy/proc/child"
)

// proxies is how many Envoys share limits.
const proxies = 3

// fleet is three Envoys of one worker, alike, and all that they may ask: a quota
// service and the rate limit service, both on one Redis.
type fleet struct {
	*bench
	service *service
	quota   *quotaService
	envoys  []*proc.Process
}

// startFleet starts them with a listener for each side. Route says what the rate
// limit service is asked for.
func (b *bench) startFleet(ctx context.Context, sides []side, route string) (f *fleet, err error) {
	f = &fleet{bench: b}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	if f.service, err = b.startService(ctx); err != nil {
		return f, err
	}
	if f.quota, err = b.startQuota(ctx, "redis://"+f.service.redisAt); err != nil {
		return f, err
	}
	site := map[string]any{
		"Direct": false, "Balanced": false, "Upstream": b.upstream, "Route": route,
		"Clusters": fmt.Sprintf(serviceCluster, "ratelimit", f.service.port) + fmt.Sprintf(serviceCluster, "sluice_quota", f.quota.port),
	}
	var listeners []listener
	for _, s := range sides {
		filters := s.filter
		if s.policy != "" {
			if filters, err = wasmFilter(envoy.Plugin{Wasm: b.wasm, VMID: s.name, Policy: []byte(s.policy)}); err != nil {
				return f, err
			}
		}
		listeners = append(listeners, listener{s.name, filters})
	}
	site["Listeners"] = listeners
	bootstrap, err := writeSite(site)
	if err != nil {
		return f, err
	}
	for range proxies {
		p, err := b.startEnvoy(ctx, bootstrap, 1)
		if err != nil {
			return f, err
		}
		f.envoys = append(f.envoys, p)
	}
	for _, p := range f.envoys {
		if err := b.ready(ctx, p, b.envoyCores); err != nil {
			return f, err
		}
	}
	return f, nil
}

// stop ends all that was started.
func (f *fleet) stop() (err error) {
	for _, p := range f.envoys {
		err = errors.Join(err, p.Kill())
	}
	if f.quota != nil {
		err = errors.Join(err, f.quota.Kill())
	}
	if f.service != nil {
		f.service.stop()
	}
	return err
}

// dial connects clients to a listener of every Envoy: those of one Envoy follow
// those of the other.
func (f *fleet) dial(ctx context.Context, name string) (all clients, err error) {
	for _, p := range f.envoys {
		address, err := p.Listener(ctx, name)
		if err != nil {
			return all, err
		}
		list, err := dial(address, "", 1)
		all = append(all, list...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// warm loads a listener until its filter runs as it will.
func (f *fleet) warm(all clients) error {
	for began := time.Now(); time.Since(began) < f.warmUp; {
		if _, err := all.full(30 * len(all)); err != nil {
			return err
		}
	}
	return nil
}

// used is the processor time so far: of all Envoys, both services, Redis.
func (f *fleet) used() (times [3]time.Duration, err error) {
	list := []int{f.service.ratelimit.Pid(), f.quota.Pid(), f.service.redis.Pid()}
	for _, p := range f.envoys {
		list = append(list, p.Pid())
	}
	all, err := cpuTimes(list)
	if err != nil {
		return times, err
	}
	times[1], times[2] = all[0]+all[1], all[2]
	for _, t := range all[3:] {
		times[0] += t
	}
	return times, nil
}

// quotaService is a running `sluice quota`.
type quotaService struct {
	*child.Child
	port int
	http string // URL
}

// startQuota starts one on the cores of this program.
func (b *bench) startQuota(ctx context.Context, store string) (*quotaService, error) {
	free, err := ports.Free(2)
	if err != nil {
		return nil, err
	}
	q := &quotaService{port: free[0], http: fmt.Sprint("http://127.0.0.1:", free[1])}
	cmd := exec.CommandContext(ctx, b.sluice, "quota", "--listen", fmt.Sprint("127.0.0.1:", free[0]),
		"--http", fmt.Sprint("127.0.0.1:", free[1]), "--quota-store", store)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if q.Child, err = child.Start(cmd); err != nil {
		return nil, err
	}
	if err = q.Until(ctx, "be healthy", healthy(q.http+"/healthz")); err != nil {
		err = errors.Join(err, q.Kill())
	}
	return q, err
}

var asksLine = regexp.MustCompile(`(?m)^sluice_quota_asks_total\{.*\} (\S+)$`)

// asks is how many asks it has answered.
func (q *quotaService) asks(ctx context.Context) (n float64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, q.http+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	found := asksLine.FindAllStringSubmatch(string(text), -1)
	if len(found) == 0 {
		return 0, errors.New("the quota service says nothing of asks")
	}
	for _, m := range found {
		value, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, err
		}
		n += value
	}
	return n, nil
}
