package overlay

import "path/filepath"

// Replay changes the installed toolchain so that a synctest bubble goes the
// same way each time it is run from one seed, in any process, as long as that
// was started with GOMAXPROCS=1 (to set it later leaves traces) and nothing is
// collected meanwhile (a GC percent of -1). What decides
// between goroutines is then drawn from a generator that chaos/sim seeds:
//
//   - the order of a select's cases, and of timers of one instant;
//   - math/rand's functions without a source of their own.
//
// What would draw from it a number of times that depends on what the process
// did before, as with caches that are made at their first use, gets the same
// number every time instead: the seeds of maps, and where a range over one
// begins. A select has its timers draw their places among those of one instant in
// the order in which it looks at its cases, not of their channels' addresses. Contexts end their children, and HTTP
// servers their connections, in the order of their making, not of a map of pointers, as the addresses differ from
// process to process. No time but the bubble's own counts: not for the starvation of a mutex, nor to preempt a
// goroutine that runs long, nor to go on with another while a system call is slow; and the number of goroutines that
// ran before is looked at no more.
//
// Nothing built so may ship: it starts with the same random numbers each time,
// and one goroutine can hold up all others for a minute.
func Replay(goroot string) Set {
	return Set{Root: filepath.Join(goroot, "src"), Edits: replayEdits}
}

var replayEdits = []Edit{
	{
		"runtime/rand.go",
		"\tglobalRand.state.Init(*seed)\n",
		"\t*seed = [32]byte{1}\n\tglobalRand.state.Init(*seed)\n",
	},
	{
		"runtime/rand.go",
		"\tmp := getg().m\n\tc := &mp.chacha8\n",
		"\tif getg().bubble != nil {\n\t\treturn bubbleConstant\n\t}\n\tmp := getg().m\n\tc := &mp.chacha8\n",
	},
	{
		"runtime/rand.go",
		"// mrandinit initializes the random state of an m.\n",
		generator + "// mrandinit initializes the random state of an m.\n",
	},
	{
		"runtime/select.go",
		"cheaprandn(uint32(norder + 1))",
		"bubbleRandn(uint32(norder + 1))",
	},
	{
		"runtime/select.go",
		"\t// pass 2 - enqueue on all chans\n",
		blockTimers + "\t// pass 2 - enqueue on all chans\n",
	},
	{
		"runtime/select.go",
		"\t\tif c.timer != nil {\n\t\t\tblockTimerChan(c)\n\t\t}\n",
		"",
	},
	{
		"runtime/time.go",
		"\t\t\tt.rand = cheaprand()\n",
		"\t\t\tt.rand = uint32(bubbleRand())\n",
	},
	{
		"runtime/sema.go",
		"func internal_sync_nanotime() int64 {\n",
		"func internal_sync_nanotime() int64 {\n\tif bubble := getg().bubble; bubble != nil {\n\t\treturn bubble.now\n\t}\n",
	},
	{
		"runtime/proc.go",
		"const forcePreemptNS = 10 * 1000 * 1000 // 10ms\n",
		"const forcePreemptNS = 60 * 1000 * 1000 * 1000\n",
	},
	{
		"runtime/proc.go",
		"if runqempty(pp) && sched.nmspinning.Load()+sched.npidle.Load() > 0 && pd.syscallwhen+10*1000*1000 > now {\n",
		"if pd.syscallwhen+10*1000*1000*1000 > now {\n",
	},
	{
		"runtime/proc.go",
		"if pp.schedtick%61 == 0 && !sched.runq.empty() {\n",
		"if false {\n",
	},
	{
		"math/rand/rand.go",
		"//go:linkname runtime_rand runtime.rand\n",
		"//go:linkname runtime_rand runtime.drawRand\n",
	},
	{
		"math/rand/v2/rand.go",
		"//go:linkname runtime_rand runtime.rand\n",
		"//go:linkname runtime_rand runtime.drawRand\n",
	},
	{
		"context/context.go",
		"\tchildren map[canceler]struct{} // set to nil by the first cancel call\n",
		"\tchildren map[canceler]uint64\n\tborn uint64\n",
	},
	{
		"context/context.go",
		"\t\t\t\tp.children = make(map[canceler]struct{})\n\t\t\t}\n\t\t\tp.children[child] = struct{}{}\n",
		"\t\t\t\tp.children = make(map[canceler]uint64)\n\t\t\t}\n\t\t\tp.born++\n\t\t\tp.children[child] = p.born\n",
	},
	{
		"context/context.go",
		"\tfor child := range c.children {\n",
		"\tfor len(c.children) > 0 {\n" + firstborn,
	},
	{
		"net/http/server.go",
		"\tserver *Server\n\n\t// cancelCtx cancels the connection-level context.\n",
		"\tserver *Server\n\tborn uint64\n\n\t// cancelCtx cancels the connection-level context.\n",
	},
	{
		"net/http/server.go",
		"\tactiveConn map[*conn]struct{}\n",
		"\tactiveConn map[*conn]struct{}\n\tborn uint64\n",
	},
	{
		"net/http/server.go",
		"\t\ts.activeConn[c] = struct{}{}\n",
		"\t\ts.born++\n\t\tc.born = s.born\n\t\ts.activeConn[c] = struct{}{}\n",
	},
	{
		"net/http/server.go",
		"\tfor c := range s.activeConn {\n\t\tc.rwc.Close()\n",
		"\tfor _, c := range byAge(s.activeConn) {\n\t\tc.rwc.Close()\n",
	},
	{
		"net/http/server.go",
		"\tfor c := range s.activeConn {\n\t\tst, unixSec := c.getState()\n",
		"\tfor _, c := range byAge(s.activeConn) {\n\t\tst, unixSec := c.getState()\n",
	},
	{
		"net/http/server.go",
		"func (s *Server) trackConn(c *conn, add bool) {\n",
		byAge + "func (s *Server) trackConn(c *conn, add bool) {\n",
	},
}

// generator is splitmix64, and what draws from it.
const generator = `
//go:linkname bubbleState
var bubbleState uint64

//go:linkname bubbleConstant
var bubbleConstant uint64

//go:nosplit
func bubbleRand() uint64 {
	bubbleState += 0x9e3779b97f4a7c15
	x := bubbleState
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

//go:nosplit
func bubbleRandn(n uint32) uint32 {
	if getg().bubble == nil {
		return cheaprandn(n)
	}
	return uint32((uint64(uint32(bubbleRand())) * uint64(n)) >> 32)
}

//go:linkname drawRand
func drawRand() uint64 {
	if getg().bubble == nil {
		return rand()
	}
	return bubbleRand()
}

`

// blockTimers is what a select does with its timers before it waits.
const blockTimers = `	for _, casei := range pollorder {
		if c := scases[casei].c; c.timer != nil {
			blockTimerChan(c)
		}
	}

`

// firstborn takes the oldest child out of c.children.
const firstborn = `		var child canceler
		for other, at := range c.children {
			if child == nil || at < c.children[child] {
				child = other
			}
		}
		delete(c.children, child)
`

// byAge returns a server's connections in the order of their making.
const byAge = `func byAge(conns map[*conn]struct{}) []*conn {
	var all []*conn
	for c := range conns {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *conn) int { return int(a.born) - int(b.born) })
	return all
}

`
