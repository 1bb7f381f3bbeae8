package policytest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
)

// toSim is the request as the simulated proxy takes it.
func (r *Request) toSim() (*sim.Request, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	in := &sim.Request{
		Method: r.Method, Host: r.Host, Path: r.Path, Headers: fields(r.Header), ClientIP: r.ClientIP, Route: r.Route,
		Properties: map[string][]byte{}, Metadata: map[string]*structpb.Struct{},
	}
	length := max(len(r.Body), r.BodyBytes)
	if length > 0 && r.Header.Get("content-length") == "" {
		in.Headers = append(in.Headers, [2]string{"content-length", strconv.Itoa(length)})
	}
	in.HasBody = length > 0 || r.Header.Get("content-length")+r.Header.Get("transfer-encoding") != ""
	for name, value := range r.Properties {
		in.Properties[name] = []byte(value)
	}
	for namespace, values := range r.allMetadata() {
		var err error
		in.Metadata[namespace], err = structpb.NewStruct(values)
		if err != nil {
			return nil, fmt.Errorf("metadata %s: %w", namespace, err)
		}
	}
	switch r.Fault {
	case GetFault:
		in.Faults = &sim.Faults{Get: true}
	case SetFault:
		in.Faults = &sim.Faults{Set: true}
	case "", QuotaFault:
	default:
		return nil, fmt.Errorf("a request fails by quota, get or set, not %q", r.Fault)
	}
	return in, nil
}

// allMetadata is Metadata with the claims of JWT, where jwt_authn leaves them.
func (r *Request) allMetadata() map[string]map[string]any {
	if len(r.JWT) == 0 {
		return r.Metadata
	}
	claims := map[string]any{}
	maps.Copy(claims, r.Metadata[accesslog.JWTNamespace])
	for provider, of := range r.JWT {
		claims[provider] = of
	}
	all := map[string]map[string]any{}
	maps.Copy(all, r.Metadata)
	all[accesslog.JWTNamespace] = claims
	return all
}

// fields are headers by name, in lower case.
func fields(h http.Header) (list [][2]string) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			list = append(list, [2]string{strings.ToLower(name), value})
		}
	}
	return list
}

func header(fields [][2]string) http.Header {
	h := http.Header{}
	for _, f := range fields {
		h.Add(f[0], f[1])
	}
	return h
}
