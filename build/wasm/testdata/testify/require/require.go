// Package require stands in for testify's, which TinyGo cannot compile, where the tests
// of what the filter links are compiled as the filter is.
//
// Its invariant: what testify's refuses, it refuses. A test that fails ends the program,
// because nothing recovers there.
package require

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
)

func must(t testing.TB, ok bool, said []any, format string, values ...any) {
	if ok {
		return
	}
	fmt.Printf("--- FAIL: %s: %s %v\n", t.Name(), fmt.Sprintf(format, values...), said)
	os.Exit(1)
}

func Equal(t testing.TB, want, got any, said ...any) {
	must(t, reflect.DeepEqual(want, got), said, "want %v, got %v", want, got)
}

func NotEqual(t testing.TB, other, got any, said ...any) {
	must(t, !reflect.DeepEqual(other, got), said, "got %v", got)
}

func EqualValues(t testing.TB, want, got any, said ...any) {
	must(t, reflect.DeepEqual(want, got) || compare(want, got) == 0, said, "want %v, got %v", want, got)
}

func Zero(t testing.TB, got any, said ...any) {
	must(t, got == nil || reflect.ValueOf(got).IsZero(), said, "want zero, got %v", got)
}

func NotZero(t testing.TB, got any, said ...any) {
	must(t, got != nil && !reflect.ValueOf(got).IsZero(), said, "got zero")
}

func Nil(t testing.TB, got any, said ...any)    { must(t, none(got), said, "want nil, got %v", got) }
func NotNil(t testing.TB, got any, said ...any) { must(t, !none(got), said, "got nil") }

func none(v any) bool {
	if v == nil {
		return true
	}
	switch of := reflect.ValueOf(v); of.Kind() {
	case reflect.Chan, reflect.Func, reflect.Map, reflect.Pointer, reflect.Slice:
		return of.IsNil()
	}
	return false
}

func Same(t testing.TB, want, got any, said ...any) {
	must(t, want == got, said, "want %p, got %p", want, got)
}

func True(t testing.TB, got bool, said ...any)  { must(t, got, said, "want true") }
func False(t testing.TB, got bool, said ...any) { must(t, !got, said, "want false") }

func Truef(t testing.TB, got bool, format string, values ...any) {
	must(t, got, nil, format, values...)
}

func NoError(t testing.TB, err error, said ...any) { must(t, err == nil, said, "%v", err) }
func Error(t testing.TB, err error, said ...any)   { must(t, err != nil, said, "want an error") }

func ErrorIs(t testing.TB, err, want error, said ...any) {
	must(t, errors.Is(err, want), said, "want %v, got %v", want, err)
}

func EqualError(t testing.TB, err error, want string, said ...any) {
	must(t, err != nil && err.Error() == want, said, "want %s, got %v", want, err)
}

func Less(t testing.TB, a, b any, said ...any) {
	must(t, compare(a, b) < 0, said, "%v is not below %v", a, b)
}

func LessOrEqual(t testing.TB, a, b any, said ...any) {
	must(t, compare(a, b) <= 0, said, "%v is above %v", a, b)
}

func Greater(t testing.TB, a, b any, said ...any) {
	must(t, compare(a, b) > 0, said, "%v is not above %v", a, b)
}

func GreaterOrEqual(t testing.TB, a, b any, said ...any) {
	must(t, compare(a, b) >= 0, said, "%v is below %v", a, b)
}

func Positive(t testing.TB, got any, said ...any) {
	must(t, float(reflect.ValueOf(got)) > 0, said, "%v is not positive", got)
}

func InDelta(t testing.TB, want, got any, delta float64, said ...any) {
	must(t, math.Abs(float(reflect.ValueOf(want))-float(reflect.ValueOf(got))) <= delta, said, "want %v, got %v", want, got)
}

func Len(t testing.TB, got any, n int, said ...any) {
	must(t, reflect.ValueOf(got).Len() == n, said, "want %d of them, got %v", n, got)
}

func Empty(t testing.TB, got any, said ...any) {
	must(t, empty(got), said, "want nothing, got %v", got)
}
func NotEmpty(t testing.TB, got any, said ...any) { must(t, !empty(got), said, "got nothing") }

func empty(v any) bool {
	if v == nil {
		return true
	}
	switch of := reflect.ValueOf(v); of.Kind() {
	case reflect.Map, reflect.Slice, reflect.String:
		return of.Len() == 0
	default:
		return of.IsZero()
	}
}

func Contains(t testing.TB, all, one any, said ...any) {
	must(t, contains(all, one), said, "%v is not in %v", one, all)
}

func NotContains(t testing.TB, all, one any, said ...any) {
	must(t, !contains(all, one), said, "%v is in %v", one, all)
}

func contains(all, one any) bool {
	of := reflect.ValueOf(all)
	switch of.Kind() {
	case reflect.String:
		return strings.Contains(of.String(), one.(string))
	case reflect.Map:
		return of.MapIndex(reflect.ValueOf(one)).IsValid()
	}
	for i := range of.Len() {
		if reflect.DeepEqual(of.Index(i).Interface(), one) {
			return true
		}
	}
	return false
}

func Fail(t testing.TB, what string, said ...any) { must(t, false, said, "%s", what) }

// compare returns a number below, at or above 0 as a is to b. Of two types it compares
// floats, which is near enough there.
func compare(a, b any) int {
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	switch {
	case v.CanInt() && w.CanInt():
		return cmp.Compare(v.Int(), w.Int())
	case v.CanUint() && w.CanUint():
		return cmp.Compare(v.Uint(), w.Uint())
	}
	return cmp.Compare(float(v), float(w))
}

func float(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	}
	return math.NaN()
}
