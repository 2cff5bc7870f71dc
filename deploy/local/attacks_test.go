//go:build integration

package local_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/leftover"
	"github.com/nusa-scheduler/nusa/internal/freeport"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/trust"
)

const hostileJob = `
name: steady
groups:
  main:
    tasks:
      main:
        driver: process
        config: {command: /bin/sleep, args: ["1000"]}
        resources: {cpu: 10m, memory: 16MiB}
`

// hostile is a federation under attack: its processes with all their ports.
type hostile struct {
	*joined
	names []string
	ports []socket
	// task is the id of the only allocation. It must not change.
	task string
}

// startHostile starts a federation whose members have joined by token, with every port open.
func startHostile(t *testing.T) *hostile {
	t.Helper()
	bin, err := filepath.Abs("../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{joined: &joined{T: t, dir: t.TempDir(), bin: bin, port: freeport.Reserve(t, ports)}, names: []string{"g1", "s1", "n1"}}
	leftover.Nothing(t, h.dir)
	h.start("g1", nil, "global", "--api-addr", h.addr(0), "--grpc-addr", h.addr(4), "--federation-addr", h.addr(5),
		"--http-addr", h.addr(1), "--etcd-client-addr", h.addr(2))
	h.until("g1", "server", "list")
	h.start("s1", []string{"NUSA_JOIN_TOKEN=" + h.token("--role", "server")}, "regional", "--region", "jakarta", "--fast-raft", "--bootstrap-expect", "1",
		"--global", h.addr(5), "--grpc-addr", h.addr(10), "--agent-addr", h.addr(15), "--raft-addr", h.addr(11), "--gossip-addr", h.addr(12), "--probe-addr", h.addr(13), "--http-addr", h.addr(14))
	h.until("connected", "region", "list")
	h.start("n1", []string{"NUSA_JOIN_TOKEN=" + h.token("--role", "agent")}, "agent", "--region", "jakarta", "--servers", h.addr(15),
		"--http-addr", h.addr(20), "--leave-on-shutdown")
	h.until("ready", "node", "list")
	file := filepath.Join(h.dir, "steady.yaml")
	if err := os.WriteFile(file, []byte(hostileJob), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := h.nusa("job", "run", file, "--detach"); err != nil {
		t.Fatal(out, err)
	}
	h.until("running", "job", "status", "steady")
	h.task = h.allocation()
	for _, name := range h.names {
		h.ports = append(h.ports, sockets(t, h.pid(name))...)
	}
	return h
}

// allocation returns the id of the only allocation of the job.
func (h *hostile) allocation() string {
	h.Helper()
	conn := h.dialAs("127.0.0.1", h.addr(0))
	list, err := nusav1.NewAllocationsClient(conn).List(h.Context(), &nusav1.ListAllocationsRequest{All: true})
	if err != nil || len(list.GetAllocations()) != 1 || list.GetAllocations()[0].GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING {
		h.Fatalf("the job has the allocations %v, %v", list.GetAllocations(), err)
	}
	return list.GetAllocations()[0].GetId()
}

// dialAs returns a connection of the operator, or without a certificate if roots are given, from
// an address of this machine.
func (h *hostile) dialAs(from, addr string, roots ...*x509.Certificate) *grpc.ClientConn {
	h.Helper()
	rules := identity.Rules{{Kind: identity.Global}, {Kind: identity.Server}}
	var option grpc.DialOption
	if len(roots) > 0 {
		option = grpc.WithTransportCredentials(trust.FirstContact(roots[0].Equal, rules))
	} else {
		source, err := trust.Open(trust.Options{Dir: filepath.Join(h.dir, "g1", "operator")})
		if err != nil {
			h.Fatal(err)
		}
		option = source.Dial(rules)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := grpc.NewClient(addr, option, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", addr)
	}))
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { conn.Close() })
	return conn
}

// sound fails the test if an attack has stopped a process, the task, or what operators do.
func (h *hostile) sound(after string, memory map[string]int) {
	h.Helper()
	h.until("ready", "node", "list")
	if now := h.allocation(); now != h.task {
		h.Errorf("after %s: the task is %s, and was %s", after, now, h.task)
	}
	for _, name := range h.names {
		text, err := os.ReadFile(filepath.Join(h.dir, name+".log"))
		if err != nil || bytes.Contains(text, []byte("panic")) || bytes.Contains(text, []byte("goroutine ")) {
			h.Errorf("after %s: %s: %v\n%s", after, name, err, text)
		}
		const most = 150 // MiB; thousands of connections are open meanwhile
		if grown := residentMiB(h.T, h.pid(name)) - memory[name]; grown > most {
			h.Errorf("after %s: %s has grown by %d MiB, more than %d", after, name, grown, most)
		}
	}
}

// TestHostileNetwork: a program that reaches every port of a federation, and has no certificate, stops nothing and
// gets nothing, whatever it sends. Its connections are closed in time.
func TestHostileNetwork(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	var tcp, udp []string
	for _, s := range h.ports {
		if s.udp {
			udp = append(udp, s.addr)
		} else {
			tcp = append(tcp, s.addr)
		}
	}
	if len(tcp) < 12 || len(udp) < 2 {
		t.Fatalf("the ports are %v and %v: the test does not find all", tcp, udp)
	}
	t.Logf("the ports are %v and %v", tcp, udp)
	memory := map[string]int{}
	for _, name := range h.names {
		memory[name] = residentMiB(t, h.pid(name))
	}
	t.Run("garbage", func(t *testing.T) {
		var wg sync.WaitGroup
		for _, addr := range tcp {
			wg.Go(func() { garbage(t, addr) })
		}
		for _, addr := range udp {
			wg.Go(func() { packets(t, addr) })
		}
		wg.Wait()
		h.sound("garbage", memory)
	})
	t.Run("slow and silent connections", func(t *testing.T) {
		var wg sync.WaitGroup
		for _, addr := range tcp {
			for kind := range slowKinds {
				wg.Go(func() { slow(t, kind, addr) })
			}
		}
		h.sound("slow connections", memory)
		wg.Wait()
		h.sound("the end of slow connections", memory)
	})
	t.Run("downgraded", func(t *testing.T) { h.downgrade(t, tcp) })
	t.Run("failed joins", h.failedJoins)
	h.sound("failed joins", memory)
}

// downgrade: no encrypted port speaks an earlier TLS, or answers a request without encryption. The ports of HTTP are
// on loopback, so they are plain.
func (h *hostile) downgrade(t *testing.T, tcp []string) {
	encrypted := 0
	for _, addr := range tcp {
		conn, err := tls.Dial("tcp", addr, stranger())
		if err != nil && !strings.Contains(err.Error(), "certificate required") && !strings.Contains(err.Error(), "bad certificate") {
			continue // a plain port
		}
		if err == nil {
			if v := conn.ConnectionState().Version; v != tls.VersionTLS13 {
				t.Errorf("%s speaks %s", addr, tls.VersionName(v))
			}
			conn.Close()
		}
		encrypted++
		if conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}); err == nil {
			t.Errorf("%s accepts %s", addr, tls.VersionName(conn.ConnectionState().Version))
			conn.Close()
		}
		plain := connect(t, addr)
		if _, err := io.WriteString(plain, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Error(err)
		}
		if answer, _ := io.ReadAll(plain); bytes.HasPrefix(answer, []byte("HTTP/")) {
			t.Errorf("%s answers a plain request: %q", addr, answer)
		}
	}
	if encrypted < 6 { // gRPC of both tiers, with the ports for one kind of callers, and Raft
		t.Errorf("%d ports are encrypted", encrypted)
	}
}

// failedJoins: 10,000 joins with wrong tokens get no certificate, few lines in the log and none in the audit trail, and
// keep no other machine from joining.
func (h *hostile) failedJoins(t *testing.T) {
	const joins, callers = 10_000, 64
	text, err := os.ReadFile(filepath.Join(h.dir, "g1", "operator", trust.RootsFile))
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.ParseRoots(text)
	if err != nil {
		t.Fatal(err)
	}
	root := roots.Certs[0]
	right := h.token("--role", "agent", "--name", "honest")
	request := func(name string) []byte {
		key, err := pki.NewKey(rand.Reader)
		if err != nil {
			t.Error(err)
			return nil
		}
		own, err := trust.Open(trust.Options{Dir: filepath.Join(h.dir, "g1", "operator")})
		if err != nil {
			t.Error(err)
			return nil
		}
		id := identity.ID{Federation: own.ID().Federation, Kind: identity.Agent, Region: "jakarta", Name: name}
		out, err := pki.NewRequest(id, key, rand.Reader)
		if err != nil {
			t.Error(err)
		}
		return out
	}
	forged := request("forged")
	token := func(n int64) string {
		if n%2 == 0 { // a token that exists, with another secret
			part := strings.Split(right, ".")
			part[2] = strings.Repeat("a", len(part[2]))
			return strings.Join(part, ".")
		}
		var random [join.RandomBytes]byte
		_, _ = rand.Read(random[:])
		return join.New(random, join.HashOf(root.RawSubjectPublicKeyInfo)).Reveal()
	}
	var sent atomic.Int64
	var mu sync.Mutex
	answers := map[codes.Code]int{}
	began := time.Now()
	var wg sync.WaitGroup
	for range callers / 8 {
		client := nusav1.NewIdentityClient(h.dialAs("127.0.0.1", h.addr(15), root))
		for range 8 {
			wg.Go(func() {
				for n := sent.Add(1); n <= joins; n = sent.Add(1) {
					_, err := client.Join(t.Context(), &nusav1.JoinRequest{Token: token(n), Request: forged})
					mu.Lock()
					answers[status.Code(err)]++
					mu.Unlock()
				}
			})
		}
	}
	_, err = nusav1.NewIdentityClient(h.dialAs("127.0.0.9", h.addr(15), root)).Join(t.Context(), &nusav1.JoinRequest{Token: right, Request: request("honest")})
	if err != nil {
		t.Errorf("another machine cannot join meanwhile: %v", err)
	}
	wg.Wait()
	took := time.Since(began)
	t.Logf("%d failed joins in %s: %v", joins, took.Round(time.Millisecond), answers)
	if answers[codes.OK] > 0 || answers[codes.ResourceExhausted] < joins*8/10 || answers[codes.PermissionDenied] == 0 {
		t.Errorf("the answers are %v", answers)
	}
	log, err := os.ReadFile(filepath.Join(h.dir, "s1.log"))
	if n, most := bytes.Count(log, []byte("a join is refused")), 100+10*int(took.Seconds()); err != nil || n > most {
		t.Errorf("%d lines of the log, more than %d, %v", n, most, err)
	}
	if out, err := h.nusa("audit", "list", "--region", "jakarta", "--limit", "1000"); err != nil || strings.Contains(out, "forged") {
		t.Errorf("the audit trail has the joins: %v\n%s", err, out)
	}
}

// connect opens a connection that ends with the test.
func connect(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatalf("%s: %v", addr, err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// handshaken is a connection that is silent after the handshake of TLS.
const handshaken = "handshake"

// slowKinds are connections that never make a whole request: what they send, byte by byte.
var slowKinds = map[string]string{
	"silent":       "",
	handshaken:     "",
	"HTTP":         "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: " + strings.Repeat("a", 1000),
	"HTTP, a body": "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("a", 1000),
	"HTTP/2":       http2.ClientPreface + strings.Repeat("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", 100),
	"TLS":          "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("r", 1000),
	"gossip":       "\xf4\x0cnusa/jakarta\x06",
}

// slow opens connections of one kind to a port, and fails the test if they are still open half a minute later.
func slow(t *testing.T, kind, addr string) {
	const conns, limit = 40, 30 * time.Second
	var wg sync.WaitGroup
	for range conns {
		c, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			return
		}
		wg.Go(func() {
			defer c.Close()
			began := time.Now()
			if kind == handshaken {
				encrypted := tls.Client(c, stranger())
				_ = c.SetDeadline(began.Add(5 * time.Second))
				if encrypted.Handshake() != nil {
					return // a plain port
				}
				c = encrypted
			}
			for n := 0; time.Since(began) < limit; n++ {
				if n < len(slowKinds[kind]) {
					if _, err := c.Write([]byte{slowKinds[kind][n]}); err != nil {
						return
					}
				}
				_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				if _, err := io.Copy(io.Discard, c); !errors.Is(err, os.ErrDeadlineExceeded) {
					return
				}
			}
			t.Errorf("%s: a connection of kind %q is still open after %s", addr, kind, limit)
		})
	}
	wg.Wait()
}

// garbage sends nonsense to a port, as it is and inside TLS.
func garbage(t *testing.T, addr string) {
	random := mathrand.New(mathrand.NewPCG(1, 2))
	noise := func(n int) []byte {
		out := make([]byte, n)
		for i := range out {
			out[i] = byte(random.Uint32())
		}
		return out
	}
	texts := [][]byte{
		[]byte("GET / HTTP/1.1\r\n" + strings.Repeat("X-Long: "+strings.Repeat("a", 1000)+"\r\n", 2000) + "\r\n"),
		[]byte("GET /" + strings.Repeat("../", 100_000) + " HTTP/1.1\r\n\r\n"),
		[]byte("GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nffffffffffffffff\r\n"),
		append([]byte("\x16\x03\x01\xff\xff"), noise(1<<16)...),
		append([]byte("\xf4\x0cnusa/jakarta"), noise(1<<16)...),
		append([]byte(http2.ClientPreface), noise(1<<16)...),
		hostileHTTP2(), bytes.Repeat([]byte{0}, 1<<20), bytes.Repeat([]byte{0xff}, 1<<20),
	}
	for range 30 {
		texts = append(texts, noise(1+random.IntN(8000)))
	}
	var wg sync.WaitGroup
	for _, text := range texts {
		for _, encrypted := range []bool{false, true} {
			raw, err := net.DialTimeout("tcp", addr, 10*time.Second)
			if err != nil {
				t.Errorf("%s: %v", addr, err)
				continue
			}
			wg.Go(func() {
				defer raw.Close()
				_ = raw.SetDeadline(time.Now().Add(5 * time.Second))
				c := raw
				if encrypted {
					c = tls.Client(raw, stranger())
				}
				_, _ = c.Write(text) // the server may close it first
				_, _ = io.CopyN(io.Discard, c, 1<<10)
			})
		}
	}
	wg.Wait()
}

// stranger is a client of TLS without a certificate.
func stranger() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1", "nusa-stream"}}
}

// hostileHTTP2 is what a client of HTTP/2 may send to make a server work: calls that it resets, headers that never end,
// large headers, and frames of a wrong size.
func hostileHTTP2() []byte {
	var out, headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, f := range []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "x"},
		{Name: ":path", Value: "/nusa.v1.Jobs/List"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}} {
		_ = encoder.WriteField(f) // into memory
	}
	call := bytes.Clone(headers.Bytes())
	for range 20_000 { // one byte each, because the receiver knows the field
		_ = encoder.WriteField(hpack.HeaderField{Name: "x-large", Value: strings.Repeat("a", 4000)})
	}
	large := bytes.Clone(headers.Bytes())
	out.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&out, nil)
	f.AllowIllegalWrites = true
	_ = f.WriteSettings()
	id := uint32(1)
	for range 3000 {
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: call, EndHeaders: true})
		_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
		id += 2
	}
	for range 200 {
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: call, EndHeaders: true})
		_ = f.WriteData(id, false, append([]byte{0, 0xff, 0xff, 0xff, 0xff}, make([]byte, 1000)...))
		id += 2
	}
	for range 50 {
		_ = f.WritePing(false, [8]byte{})
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: large[:10_000]})
	for range 1000 {
		_ = f.WriteContinuation(id, false, call)
	}
	_ = f.WriteRawFrame(0xff, 0xff, 0x7fffffff, make([]byte, 1000))
	return out.Bytes()
}

// packets sends nonsense to a port of UDP.
func packets(t *testing.T, addr string) {
	c, err := net.Dial("udp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	random := mathrand.New(mathrand.NewPCG(3, 4))
	label := []byte("\xf4\x0cnusa/jakarta")
	for n := range 3000 {
		b := make([]byte, random.IntN(1400))
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		if n%2 == 0 {
			b = append(append(bytes.Clone(label), byte(n)), b...)
		}
		_, _ = c.Write(b) // a full buffer drops it
	}
}
