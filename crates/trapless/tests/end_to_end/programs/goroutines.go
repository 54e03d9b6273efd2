// Works on many goroutines: their stacks grow and shrink, they go from thread to thread, panic, recover and exit. Says `ready`, and for each
// line of input what came of a round of work.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync"
)

const goroutines = 200

//go:noinline
func Grow(n int) int {
	var frame [64]int
	frame[n%64] = n
	if n == 0 {
		return 1
	}
	return Grow(n-1) + frame[n%64] - n + 1
}

//go:noinline
func Recovers(n int) (result int) {
	defer func() {
		if recover() != nil {
			result = 7
		}
	}()
	return Panics(n)
}

//go:noinline
func Panics(n int) int {
	if n == 0 {
		var nowhere *int
		return *nowhere
	}
	return Panics(n-1) + len(fmt.Sprint(n))
}

//go:noinline
func Yields(n int) int {
	sum := 0
	for i := 0; i < 20; i++ {
		runtime.Gosched()
		sum += Branches(i + n)
	}
	return sum
}

//go:noinline
func Branches(n int) int {
	switch {
	case n%3 == 0:
		return n * 3
	case n < 0:
		fmt.Println("never")
	}
	return n*3 + len(Callers())
}

// The names of who has called it.
//
//go:noinline
func Callers() string {
	var callers [4]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers[:])])
	names := ""
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		names += frame.Function
	}
	return names
}

//go:noinline
func Exits(n int) {
	if n == 0 {
		runtime.Goexit()
	}
	Exits(n - 1)
	fmt.Println("never")
}

//go:noinline
func Six(a, b, c, d, e, f int) int {
	if a < 0 {
		fmt.Println("never")
	}
	return a - b + c - d + e - f
}

//go:noinline
func Works(n int, done func(int)) {
	sum := Grow(n) + Recovers(n%20) + Yields(n) + Six(n, n+1, n+2, n+3, n+4, n+5)
	defer func() { done(sum) }()
	if n%10 == 0 {
		Exits(n % 7)
	}
}

// Keeps a processor busy with short calls, for ever.
//
//go:noinline
func Spins(n int) {
	for {
		n += Middle(n) & 1
	}
}

//go:noinline
func Middle(n int) int {
	if n < 0 {
		fmt.Println("never")
	}
	return Inner(n) ^ Inner(n+1)
}

//go:noinline
func Inner(n int) int {
	if n < 0 {
		fmt.Println("never")
	}
	return n >> 3
}

// More memory than is looked through in a short stop.
var heap [][]byte

func main() {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "profile":
		debug.SetGCPercent(5)
		pprof.StartCPUProfile(io.Discard)
	case len(os.Args) > 1 && os.Args[1] == "spin":
		// Their stacks lie far from each other.
		for i := 0; i < 4; i++ {
			heap = append(heap, bytes.Repeat([]byte{1}, 64<<20))
			for j := 0; j < 8*runtime.NumCPU(); j++ {
				go Spins(j)
			}
			runtime.Gosched()
		}
	default:
		debug.SetGCPercent(5)
	}
	input := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for input.Scan() {
		var all sync.WaitGroup
		var lock sync.Mutex
		total, others := 0, runtime.NumGoroutine()
		all.Add(goroutines)
		for i := 0; i < goroutines; i++ {
			go Works(i, func(sum int) {
				lock.Lock()
				total += sum + len(make([]byte, 10000))
				lock.Unlock()
				all.Done()
			})
		}
		all.Wait()
		// What they have done is told ahead of their return.
		for runtime.NumGoroutine() > others {
			runtime.Gosched()
		}
		fmt.Println(total)
	}
}
