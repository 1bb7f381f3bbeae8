package keyed_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/sluice-ratelimit/sluice/shared/keyed"
)

// clock is a time that the examples set by hand, so that their output is always the
// same. Without Clock a limiter uses the system's time.
type clock struct{ time.Time }

func noon() *clock { return &clock{time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time       { return c.Time }
func (c *clock) wait(d time.Duration) { c.Time = c.Add(d) }

func limiter(b *keyed.Builder) *keyed.Limiter {
	l, err := b.Build()
	if err != nil {
		panic(err)
	}
	return l
}

func say(r keyed.Result) {
	switch {
	case r.Allowed:
		fmt.Println("allowed,", r.Remaining, "left")
	case r.RetryAfter == keyed.Never:
		fmt.Println("denied for good")
	default:
		fmt.Println("denied, come back in", r.RetryAfter)
	}
}

func Example() {
	l, err := keyed.New().Window(time.Minute, 3).Window(15*time.Minute, 10).Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	if r := l.Hit("alice"); r.Allowed {
		fmt.Println("welcome")
	}
	// Output: welcome
}

// Hammer's fix_window: hit(key, scale, limit), get, set, inc.
func ExampleBuilder_Window() {
	now := noon()
	l := limiter(keyed.New().Window(time.Minute, 2).Clock(now.Now))
	now.wait(50 * time.Second)
	say(l.Hit("user_123"))
	say(l.Hit("user_123"))
	say(l.Hit("user_123"))
	fmt.Println("used", l.Get("user_123"))
	now.wait(10 * time.Second) // the next minute of the clock
	say(l.Hit("user_123"))
	// Output:
	// allowed, 1 left
	// allowed, 0 left
	// denied, come back in 10s
	// used 2
	// allowed, 1 left
}

// Hammer's fix_window_per_key: the window opens with the key's first hit.
func ExampleBuilder_WindowPerKey() {
	now := noon()
	l := limiter(keyed.New().WindowPerKey(time.Minute, 2).Clock(now.Now))
	now.wait(50 * time.Second)
	say(l.HitN("user_123", 2))
	say(l.Hit("user_123"))
	fmt.Println("until", l.ExpiresAt("user_123").UTC().Format(time.TimeOnly))
	fmt.Println("no open window:", l.ExpiresAt("user_456").IsZero())
	// Output:
	// allowed, 0 left
	// denied, come back in 1m0s
	// until 12:01:50
	// no open window: true
}

// Hammer counts denied hits too: a client that does not stop stays denied until the
// window ends, and the count is the number of its hits.
func ExampleBuilder_CountDenied() {
	l := limiter(keyed.New().Window(time.Minute, 1).CountDenied().Clock(noon().Now))
	l.Hit("user_123")
	l.Hit("user_123")
	l.Hit("user_123")
	fmt.Println("used", l.Get("user_123"))
	// Output: used 3
}

// glimit's layered windows: a hit that one of them denies uses nothing in the
// others.
func ExampleBuilder_Window_layered() {
	now := noon()
	l := limiter(keyed.New().
		Window(60*time.Second, 1).
		Window(900*time.Second, 3).
		Window(3600*time.Second, 10).
		Clock(now.Now))
	for range 4 {
		say(l.Hit("login:bob"))
		now.wait(time.Minute)
	}
	for _, w := range l.Detail("login:bob", nil) {
		fmt.Println(w.Used, "of", w.Limit, "in", w.Period)
	}
	// Output:
	// allowed, 0 left
	// allowed, 0 left
	// allowed, 0 left
	// denied, come back in 12m0s
	// 0 of 1 in 1m0s
	// 3 of 3 in 15m0s
	// 3 of 10 in 1h0m0s
}

// The moving window of Python limits: exact in every minute.
func ExampleBuilder_SlidingLog() {
	now := noon()
	l := limiter(keyed.New().SlidingLog(time.Minute, 10).Clock(now.Now))
	for _, c := range []struct {
		at   time.Duration
		hits uint32
	}{{10 * time.Second, 1}, {20 * time.Second, 2}, {30 * time.Second, 4}, {50 * time.Second, 3},
		{71 * time.Second, 1}, {72 * time.Second, 1}} {
		now.Time = noon().Add(c.at)
		say(l.HitN("k", c.hits))
	}
	// Output:
	// allowed, 9 left
	// allowed, 7 left
	// allowed, 3 left
	// allowed, 0 left
	// allowed, 0 left
	// denied, come back in 8s
}

// The sliding window counter of Python limits: 40 units of the previous minute, half
// of which still lies in the window, and 80 of this one.
func ExampleBuilder_SlidingCounter() {
	now := noon()
	l := limiter(keyed.New().SlidingCounter(time.Minute, 100).Clock(now.Now))
	l.HitN("k", 40)
	now.wait(time.Minute)
	l.HitN("k", 60)
	now.wait(30 * time.Second)
	l.HitN("k", 20)
	fmt.Println("used", l.Get("k"))
	say(l.Peek("k"))
	now.wait(10 * time.Second)
	fmt.Println("used", l.Get("k"))
	say(l.Peek("k"))
	// Output:
	// used 100
	// denied, come back in 1ns
	// used 93
	// allowed, 7 left
}

// The deprecated elastic window of Python limits: every hit, also a denied one,
// moves the end.
func ExampleElastic() {
	now := noon()
	l := limiter(keyed.New().WindowPerKey(time.Minute, 1, keyed.Elastic()).CountDenied().Clock(now.Now))
	say(l.Hit("k"))
	now.wait(59 * time.Second)
	say(l.Hit("k"))
	now.wait(59 * time.Second)
	say(l.Hit("k"))
	// Output:
	// allowed, 0 left
	// denied, come back in 1m0s
	// denied, come back in 1m0s
}

// go-limiter's and glimit's bucket: ten tokens a second, at most twenty at once.
func ExampleBuilder_TokenBucket() {
	now := noon()
	l := limiter(keyed.New().TokenBucket(time.Second, 10, keyed.Burst(20)).Clock(now.Now))
	say(l.HitN("k", 20))
	say(l.Hit("k"))
	now.wait(250 * time.Millisecond)
	say(l.Hit("k"))
	say(l.HitN("k", 21))
	// Output:
	// allowed, 0 left
	// denied, come back in 100ms
	// allowed, 1 left
	// denied for good
}

// ADR-003's burst buffer: a small token bucket beside a fixed window smooths the
// burst that the window admits at its boundary.
func ExampleBurst() {
	now := noon()
	l := limiter(keyed.New().
		Window(time.Minute, 100).
		TokenBucket(time.Minute, 100, keyed.Burst(10)).
		Clock(now.Now))
	now.wait(59 * time.Second)
	passed := 0
	for range 2000 { // two seconds across the boundary
		if l.Hit("k").Allowed {
			passed++
		}
		now.wait(time.Millisecond)
	}
	fmt.Println(passed, "instead of 200")
	// Output: 13 instead of 200
}

// A window that starts on Mondays, UTC.
func ExampleOffset() {
	day := 24 * time.Hour
	l := limiter(keyed.New().Window(7*day, 1000, keyed.Offset(4*day)).Clock(noon().Now))
	fmt.Println(l.Hit("k").ResetAt.UTC().Format("Monday 2006-01-02 15:04"))
	// Output: Monday 2030-01-07 00:00
}

func ExampleLimiter_SetWindow() {
	l := limiter(keyed.New().
		Window(time.Minute, 10).
		Window(24*time.Hour, 100, keyed.Name("daily")).
		Clock(noon().Now))
	if _, err := l.SetWindow("k", "daily", 99); err != nil {
		fmt.Println(err)
	}
	say(l.Hit("k"))
	say(l.Hit("k"))
	had, _ := l.Reset("k")
	fmt.Println("forgotten:", had)
	say(l.Hit("k"))
	// Output:
	// allowed, 0 left
	// denied, come back in 12h0m0s
	// forgotten: true
	// allowed, 9 left
}

// HitDetail also returns the usage of every window. It allocates nothing if the
// slice has room.
func ExampleLimiter_HitDetail() {
	l := limiter(keyed.New().Window(time.Minute, 5).SlidingLog(time.Hour, 50).Clock(noon().Now))
	var space [2]keyed.Usage
	r, windows := l.HitDetail("k", 2, space[:0])
	fmt.Println(r.Allowed, windows[0].Remaining, windows[1].Remaining)
	// Output: true 3 48
}

func ExampleLimiter_Middleware() {
	l := limiter(keyed.New().Window(time.Minute, 1).Clock(noon().Now))
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	handler := l.Middleware(keyed.ByHeader("x-user-id"), keyed.RateLimitFields("per-user"))(hello)

	for range 2 {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("X-User-Id", "alice")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%d, %s, retry %q\n", w.Code, w.Header().Get("RateLimit"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 200, "per-user";r=0;t=60, retry ""
	// 429, "per-user";r=0;t=60, retry "60"
}
