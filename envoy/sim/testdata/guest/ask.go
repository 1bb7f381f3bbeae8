package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

//go:wasmimport env proxy_get_current_time_nanoseconds
func currentTime(ns *uint64) uint32

//go:wasmimport env proxy_get_shared_data
func getShared(key string, at, size, cas *uint32) uint32

//go:wasmimport env proxy_set_shared_data
func set(key, value string, cas uint32) uint32

//go:wasmimport env proxy_get_header_map_pairs
func headerPairs(kind uint32, at, size *uint32) uint32

//go:wasmimport env proxy_add_header_map_value
func addHeader(kind uint32, key, value string) uint32

//go:wasmimport env proxy_remove_header_map_value
func removeHeader(kind uint32, key string) uint32

//go:wasmimport env proxy_set_property
func setProperty(path, value string) uint32

//go:wasmimport env proxy_define_metric
func defineMetric(kind uint32, name string, id *uint32) uint32

//go:wasmimport env proxy_increment_metric
func incrementMetric(id uint32, n int64) uint32

//go:wasmimport env proxy_get_metric
func getMetric(id uint32, n *uint64) uint32

//go:wasmimport env proxy_http_call
func httpCall(cluster, headers, body, trailers string, timeout uint32, token *uint32) uint32

//go:wasmimport env proxy_call_foreign_function
func foreignFunction(name, argument string, at, size *uint32) uint32

//go:wasmimport wasi_snapshot_preview1 random_get
func random(buf *byte, size uint32) uint32

//go:wasmimport wasi_snapshot_preview1 poll_oneoff
func poll(in, out *byte, n uint32, events *uint32) uint32

// asking is a request with a header x-ask.
type asking struct {
	config string
	then   string
	action uint32
	on     bool // it goes to the upstream
	log    bool
	n, end uint32 // of the callback
}

var (
	asked   = map[uint32]*asking{}
	configs = map[uint32]string{} // of roots
	parents = map[uint32]uint32{}
	metrics = map[string]uint32{}
	wild    bool // the allocator calls the host
)

// configured does what the words of a configuration say.
func configured(config string) uint32 {
	say("configure", config)
	for _, word := range strings.Fields(config) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "refuse":
			say("refused:", value)
			return 0
		case "panic":
			panic(value)
		case "tick":
			ms, _ := strconv.Atoi(value)
			setTickPeriod(uint32(ms))
		case "set":
			set(value, "configured", 0)
		case "once":
			if set("once", "", 0xFFFFFFFE) != 0 {
				return 0
			}
		case "veto":
			if value, _, _ := get(value); value == "no" {
				return 0
			}
		}
	}
	return 1
}

func (r *asking) requestHeaders(do string) uint32 {
	r.then, _ = header(0, "x-then")
	lines := r.steps(do)
	if !r.on {
		localResponse(200, "", strings.Join(lines, "\n"), "", -1)
		return 0
	}
	for _, line := range lines {
		addHeader(0, "x-did", line)
	}
	return r.action
}

func (r *asking) responseHeaders() uint32 {
	r.action = 0
	if r.then != "" {
		for _, line := range r.steps(r.then) {
			addHeader(2, "x-then", line)
		}
	}
	return r.action
}

func (r *asking) logs() {
	if r.log {
		say("log", value(header(0, ":path")), value(header(2, ":status")), value(property("response\x00code")))
	}
}

func (r *asking) steps(do string) (lines []string) {
	for _, step := range strings.Split(do, ";") {
		lines = append(lines, r.step(append(strings.Fields(step), "", "", "", "")))
	}
	return lines
}

// value is what the host has given, or its status.
func value(text string, status uint32) string {
	if status != 0 {
		return fmt.Sprintf("!%d", status)
	}
	return text
}

// quoted is value of what may not be text.
func quoted(text string, status uint32) string {
	return value(fmt.Sprintf("%q", text), status)
}

func get(key string) (text string, cas, status uint32) {
	text, status = got(func(at, size *uint32) uint32 { return getShared(key, at, size, &cas) })
	return text, cas, status
}

// step does what a step says, and returns what it answers.
func (r *asking) step(w []string) string {
	switch w[0] {
	case "on":
		r.on = true
	case "pause":
		r.action = 1
	case "resume":
		return value("ok", continueStream(0))
	case "log":
		r.log = true
	case "wild":
		wild = true
	case "print":
		fmt.Println("said", w[1])
	case "config":
		return r.config
	case "version":
		return version
	case "panic":
		panic("asked to")
	case "info":
		return fmt.Sprint(r.n, " ", r.end)
	default:
		return r.call(w)
	}
	return "ok"
}

// call makes the host call that a step is.
func (r *asking) call(w []string) string {
	number, _ := strconv.ParseInt(w[1], 10, 64)
	path := strings.ReplaceAll(w[1], "|", "\x00") // of a property
	var b [64]byte
	switch w[0] {
	case "get":
		text, cas, status := get(w[1])
		return value(fmt.Sprint(text, " ", cas), status)
	case "set":
		cas, _ := strconv.ParseUint(w[3], 10, 32)
		return value("ok", set(w[1], w[2], uint32(cas)))
	case "header":
		return value(header(0, w[1]))
	case "headers":
		return quoted(got(func(at, size *uint32) uint32 { return headerPairs(0, at, size) }))
	case "add":
		return value("ok", addHeader(0, w[1], w[2]))
	case "remove":
		return value("ok", removeHeader(0, w[1]))
	case "response":
		return value(header(2, w[1]))
	case "prop":
		return quoted(property(path))
	case "setprop":
		return value("ok", setProperty(path, w[2]))
	case "now":
		var ns uint64
		currentTime(&ns)
		return fmt.Sprint(int64(ns), " ", time.Now().UnixNano())
	case "counter", "gauge", "again":
		return metric(w[0], w[1], w[2])
	case "random":
		random(&b[0], 4)
		return fmt.Sprintf("%x", b[:4])
	case "poll":
		return fmt.Sprint(poll(&b[0], &b[32], 1, new(uint32)))
	case "effective":
		return fmt.Sprint(setEffectiveContext(uint32(number)))
	case "buffer":
		return quoted(buffer(uint32(number)))
	case "call":
		return value("ok", httpCall(w[1], "", "", "", 1, new(uint32)))
	case "foreign":
		return value("ok", foreignFunction(w[1], "", new(uint32), new(uint32)))
	case "reply":
		grpc, _ := strconv.Atoi(w[4])
		details, body := strings.ReplaceAll(w[3], "_", " "), strings.ReplaceAll(w[2], "_", " ")
		return value("ok", localResponse(uint32(number), details, body, "", int32(grpc)))
	}
	return "what is " + w[0]
}

func metric(verb, name, text string) string {
	n, _ := strconv.ParseInt(text, 10, 64)
	id, known := metrics[name]
	if !known || verb == "again" {
		kind := uint32(0)
		if verb == "gauge" {
			kind = 1
		}
		defineMetric(kind, name, &id)
		metrics[name] = id
	}
	if verb != "again" {
		incrementMetric(id, n)
	}
	var now uint64
	getMetric(id, &now)
	return fmt.Sprint(id, " ", now)
}
