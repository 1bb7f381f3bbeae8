package proc

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// adminClient waits longer than Envoy's main thread is busy, which it is for seconds while it
// loads a filter.
var adminClient = &http.Client{Timeout: 20 * time.Second}

// Admin is the URL of Envoy's admin interface, known after WaitReady.
func (p *Process) Admin() string { return p.admin }

// Get asks the admin interface for a path and returns the body of a 200.
func (p *Process) Get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.admin+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask envoy: %w", err)
	}
	response, err := adminClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask envoy: %w", err)
	}
	body, err := io.ReadAll(response.Body)
	if closeErr := response.Body.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("ask envoy for %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask envoy for %s: %s: %s", path, response.Status, body)
	}
	return body, nil
}

func (p *Process) getJSON(ctx context.Context, path string, into any) error {
	body, err := p.Get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("ask envoy for %s: %w", path, err)
	}
	return nil
}

// Listener returns the address, host:port, on which the named listener accepts.
func (p *Process) Listener(ctx context.Context, name string) (string, error) {
	var answer struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := p.getJSON(ctx, "/listeners?format=json", &answer); err != nil {
		return "", err
	}
	for _, status := range answer.Statuses {
		if status.Name == name {
			socket := status.Address.Socket
			return net.JoinHostPort(socket.Address, strconv.Itoa(socket.Port)), nil
		}
	}
	return "", fmt.Errorf("ask envoy for its listeners: none is named %q", name)
}

// Memory returns how many bytes Envoy's allocator has given out.
func (p *Process) Memory(ctx context.Context) (uint64, error) {
	var answer struct {
		Allocated uint64 `json:"allocated,string"`
	}
	if err := p.getJSON(ctx, "/memory", &answer); err != nil {
		return 0, err
	}
	return answer.Allocated, nil
}

// Stats returns the counters and gauges whose names match a regular expression.
func (p *Process) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	var answer struct {
		Stats []struct {
			Name  string  `json:"name"`
			Value *uint64 `json:"value"` // absent from histograms
		} `json:"stats"`
	}
	if err := p.getJSON(ctx, "/stats?format=json&filter="+url.QueryEscape(filter), &answer); err != nil {
		return nil, err
	}
	stats := make(map[string]uint64, len(answer.Stats))
	for _, stat := range answer.Stats {
		if stat.Value != nil {
			stats[stat.Name] = *stat.Value
		}
	}
	return stats, nil
}

// Prometheus returns all metrics in the format of Prometheus.
func (p *Process) Prometheus(ctx context.Context) (string, error) {
	body, err := p.Get(ctx, "/stats/prometheus")
	return string(body), err
}
