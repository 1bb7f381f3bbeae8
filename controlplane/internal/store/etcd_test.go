//go:build etcd

package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/sluice-ratelimit/sluice/build/servertest"
)

func TestEtcd(t *testing.T) {
	at := servertest.StartEtcd(t, 1).URL()
	conform(t, func(t *testing.T) opener {
		return func() keeper { return openEtcd(t, at+"/"+t.Name()) }
	})
}

func openEtcd(t *testing.T, at string) *Etcd {
	t.Helper()
	e, err := OpenEtcd(t.Context(), at, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, 20*time.Second, 5*time.Millisecond, what)
}

// Each of two control planes knows what the other has done, and only one of them leads.
func TestTwoOnOneEtcd(t *testing.T) {
	at, ctx := servertest.StartEtcd(t, 1).URL(), t.Context()
	a, b := openEtcd(t, at), openEtcd(t, at)
	for i := range uint64(20) {
		appended := b.Appended()
		_, err := add(ctx, []*Etcd{a, b}[i%2], draft(fmt.Sprint(i)))
		require.NoError(t, err)
		<-appended
		for _, e := range []*Etcd{a, b} {
			soon(t, "it has it", func() bool { of, _ := e.Get(ctx, i+1); return string(of.YAML) == fmt.Sprint(i) })
		}
	}
	appended := b.Appended()
	require.NoError(t, a.SaveReply(ctx, Reply{Node: "e1", Revision: 20}))
	<-appended
	list, err := b.History(ctx, "", 1)
	require.NoError(t, err)
	require.True(t, list[0].Nacked)
	soon(t, "one leads", func() bool { return a.Leads() || b.Leads() })
	require.False(t, a.Leads() && b.Leads())
	leader, other := a, b
	if b.Leads() {
		leader, other = b, a
	}
	_, err = other.Append(ctx, Change{Last: 20, ByLeader: true, Drafts: []Draft{draft("x")}})
	require.ErrorIs(t, err, ErrConflict)
	deposed := *leader.leader
	_, err = leader.Append(ctx, Change{Last: 20, ByLeader: true, Drafts: []Draft{draft("x")}})
	require.NoError(t, err)

	soon(t, "told", func() bool {
		_, err := leader.Tell(ctx, [][]byte{[]byte("proxies"), []byte("others")})
		require.NoError(t, err)
		told, _ := other.Told()
		return string(told[leader.id+"/0"]) == "proxies" && string(told[leader.id+"/1"]) == "others"
	})
	_, changed := other.Told()
	written, err := leader.Tell(ctx, [][]byte{[]byte("more"), []byte("others")})
	require.NoError(t, err)
	require.Equal(t, len("more"), written, "only the part that has changed")
	<-changed
	mine, _ := leader.Told()
	require.Empty(t, mine)
	require.NoError(t, leader.Close())
	soon(t, "the other one leads", other.Leads)
	told, _ := other.Told()
	require.Empty(t, told, "one that is gone has no proxies")
	other.mu.Lock()
	other.leader = &deposed // it has not noticed yet
	other.mu.Unlock()
	late, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = other.Append(late, Change{Last: 21, ByLeader: true, Drafts: []Draft{draft("y")}})
	require.Error(t, err, "whoever led before steps nothing")
	require.Len(t, numbersOf(t, other, "", 0), 21)
}

// A copy either way has the same records.
func TestCopy(t *testing.T) {
	at, ctx := servertest.StartEtcd(t, 1).URL(), t.Context()
	from := open(t, t.TempDir())
	text := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(text)
	for i := range 30 {
		d := of([]string{"edge", DefaultPolicy}[i%2], fmt.Sprint(i))
		if i%10 == 0 {
			d.YAML = text
		}
		r, err := add(ctx, from, d)
		require.NoError(t, err)
		require.NoError(t, from.SaveReply(ctx, Reply{Node: fmt.Sprint(i), Revision: r.Number, Accepted: i%3 > 0}))
		_, err = from.Record(ctx, Entry{Action: "counters set"})
		require.NoError(t, err)
	}
	for i := range 100 { // more than etcd compares at once
		require.NoError(t, from.SaveReply(ctx, Reply{Node: fmt.Sprint("n", i), Revision: 1}))
	}
	require.NoError(t, from.Drop(ctx, []uint64{2}))
	_, err := from.Secret(ctx)
	require.NoError(t, err)
	on := openEtcd(t, at)
	_, err = Copy(ctx, from, on)
	require.NoError(t, err)
	_, err = Copy(ctx, from, on)
	require.ErrorIs(t, err, ErrNotEmpty)
	require.NoError(t, on.Close())
	back := open(t, t.TempDir())
	c, err := Copy(ctx, openEtcd(t, at), back)
	require.NoError(t, err)
	require.Equal(t, Contents{Revisions: 29, Newest: 30, Given: 30}, c)
	require.Equal(t, everything(t, from), everything(t, back))
	copying := func(r records) error { return r.set(metaBucket, copyingKey, []byte("yes")) }
	require.NoError(t, back.commit(ctx, false, copying))
	dir := filepath.Dir(back.db.Path())
	require.NoError(t, back.Close())
	_, err = Open(dir)
	require.ErrorContains(t, err, "cut short")
}

func everything(t *testing.T, s keeper) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, s.view(func(r records) error {
		for _, bucket := range buckets {
			for k, v := range r.descend(bucket, nil) {
				all[bucket+" "+string(k)] = string(v)
			}
			all[bucket] = fmt.Sprint(r.sequence(bucket))
		}
		return nil
	}))
	return all
}

// A control plane that etcd does not answer reads what it knows, refuses changes soon, and
// goes on by itself.
func TestCutOff(t *testing.T) {
	cluster, ctx := servertest.StartEtcd(t, 1), t.Context()
	e := openEtcd(t, cluster.URL())
	appendAll(t, e, "a")
	secret, err := e.Secret(ctx)
	require.NoError(t, err)
	for name, fault := range map[string][2]func(){
		"silent": {func() { cluster[0].Signal(syscall.SIGSTOP) }, func() { cluster[0].Signal(syscall.SIGCONT) }},
		// gRPC's own pauses are long by then.
		"killed": {func() { cluster[0].Kill(); pause(ctx, 20*time.Second) }, cluster[0].Restart},
	} {
		t.Run(name, func(t *testing.T) {
			last, err := e.Last(ctx)
			require.NoError(t, err)
			appended := e.Appended()
			fault[0]()
			soon(t, "it knows", func() bool { return e.Healthy(ctx) != nil })
			<-appended
			begun := time.Now()
			_, err = add(ctx, e, draft("lost"))
			require.ErrorIs(t, err, ErrCutOff)
			require.ErrorIs(t, e.SaveReply(ctx, Reply{Node: "n", Revision: last}), ErrCutOff)
			require.Less(t, time.Since(begun), time.Second)
			r, err := e.Get(ctx, 1)
			require.NoError(t, err)
			require.Equal(t, "a", string(r.YAML))
			known, err := e.Secret(ctx)
			require.NoError(t, err)
			require.Equal(t, secret, known)
			fault[1]()
			begun = time.Now()
			soon(t, "it is back", func() bool { return e.Healthy(ctx) == nil })
			require.Less(t, time.Since(begun), lookWithin)
			_, err = add(ctx, e, draft("b"))
			require.NoError(t, err)
			require.Len(t, numbersOf(t, e, "", 0), int(last)+1, "what was refused is nowhere")
			soon(t, "it tells again", func() bool {
				_, err := e.Tell(ctx, [][]byte{[]byte(name)})
				require.NoError(t, err)
				return string(e.told1()) == name
			})
		})
	}
}

// told1 is what others read of this control plane.
func (e *Etcd) told1() []byte {
	return records{e.newTx()}.value(replicaBucket, []byte(e.id+"/0"))
}

func TestCredentials(t *testing.T) {
	cluster, ctx := servertest.StartEtcd(t, 1), t.Context()
	e := openEtcd(t, cluster.URL())
	c := e.client
	must := func(_ any, err error) { require.NoError(t, err) }
	may := func(as *clientv3.Client, what clientv3.PermissionType) {
		must(as.RoleGrantPermission(ctx, "sluice", "mine/", clientv3.GetPrefixRangeEnd("mine/"), what))
	}
	for user, role := range map[string]string{"root": "root", "joe": "sluice"} {
		must(c.RoleAdd(ctx, role))
		must(c.UserAdd(ctx, user, "hunter2"))
		must(c.UserGrantRole(ctx, user, role))
	}
	may(c, clientv3.PermissionType(clientv3.PermReadWrite))
	must(c.AuthEnable(ctx))
	require.NoError(t, e.Close())
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "password")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	hosts := cluster[0].Addr()
	rooted, err := clientv3.New(clientv3.Config{Endpoints: []string{hosts}, Username: "root", Password: "hunter2"})
	require.NoError(t, err)
	defer rooted.Close()
	for at, want := range map[string]string{
		"etcd://" + hosts: "user or password is wrong, or etcd wants one",
		"etcd://joe@" + hosts + "/mine?password_file=" + file("hunter3"): "user or password is wrong",
		"etcd://joe@" + hosts + "/other?password_file=" + file("hunter2"): "may not read and write all keys " +
			"under the store's prefix",
		"etcds://" + hosts: "does not answer",
	} {
		begun := time.Now()
		_, err := OpenEtcd(ctx, at, nil)
		require.ErrorContains(t, err, want, at)
		require.NotContains(t, err.Error(), "hunter")
		require.NotContains(t, err.Error(), "joe")
		require.Less(t, time.Since(begun), commitWithin+5*time.Second)
	}
	joe := openEtcd(t, "etcd://joe@"+hosts+"/mine?password_file="+file("hunter2\n"))
	appendAll(t, joe, "a")

	// Who may only read is cut off from the first write on, until it may write.
	may(rooted, clientv3.PermissionType(clientv3.PermRead))
	_, err = add(ctx, joe, draft("b"))
	require.ErrorIs(t, err, ErrCutOff)
	require.ErrorContains(t, err, "nothing is stored: etcd's user may not read and write all keys")
	pause(ctx, 2*lookEvery)
	require.ErrorIs(t, joe.Healthy(ctx), ErrCutOff, "it can be read")
	may(rooted, clientv3.PermissionType(clientv3.PermReadWrite))
	soon(t, "it may write", func() bool { return joe.Healthy(ctx) == nil })
	appendAll(t, joe, "b")
}
