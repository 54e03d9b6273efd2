// Goroutines that fault and say where, that loop in functions with little room for probes, and, if asked for, a profile of what they do. Says
// `ready`, and for each line of input what came of a round of work; or for as many rounds as it is told.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
)

const goroutines = 8

type node struct {
	next  *node
	value int
}

// Its first instruction loads what may not be there.
//
//go:noinline
func First(at *node) int {
	return at.value
}

// The same behind what moves the stack pointer.
//
//go:noinline
func Later(at *node, n int) int {
	var frame [32]int
	frame[n%32] = at.value
	return frame[(n+1)%32] + Hot(n)
}

// Where the panic was, by function and line, as the run-time system finds it from the instruction that has faulted.
//
//go:noinline
func Where(f func()) (where string) {
	defer func() {
		reason := recover()
		var at [16]uintptr
		frames := runtime.CallersFrames(at[:runtime.Callers(1, at[:])])
		for {
			frame, more := frames.Next()
			if strings.HasPrefix(frame.Function, "main.") {
				where += fmt.Sprintf("%s:%d ", frame.Function, frame.Line)
			}
			if !more {
				break
			}
		}
		where = fmt.Sprint(reason, " ", where)
	}()
	f()
	return
}

// A loop behind the first instruction: two bytes are all that a probe finds there.
//
//go:noinline
func Last(from *node) *node {
	for from.next != nil {
		from = from.next
	}
	return from
}

//go:noinline
func Hot(n int) int {
	return n*n + 1
}

func work(list *node, n int) string {
	sum := 0
	for i := 0; i < 200; i++ {
		sum += Last(list).value
		for k := 0; k < 1000; k++ {
			sum += Hot(k)
		}
	}
	first := Where(func() { First(nil) })
	later := Where(func() { Later(nil, n) })
	return fmt.Sprint(sum, first, later)
}

func round(list *node, profiles bool) string {
	var profile bytes.Buffer
	if profiles {
		pprof.StartCPUProfile(&profile)
	}
	results := make([]string, goroutines)
	var all sync.WaitGroup
	stop := make(chan bool)
	go func() {
		for {
			select {
			case <-stop:
				stop <- true
				return
			default:
				// Stops them all, wherever they are.
				runtime.GC()
			}
		}
	}()
	for n := range results {
		all.Add(1)
		go func(n int) {
			results[n] = work(list, n)
			all.Done()
		}(n)
	}
	all.Wait()
	stop <- true
	<-stop
	for _, result := range results {
		if result != results[0] {
			return "they differ: " + result + " and " + results[0]
		}
	}
	outside := false
	if profiles {
		pprof.StopCPUProfile()
		unpacked, err := gzip.NewReader(&profile)
		if err != nil {
			return err.Error()
		}
		names, _ := io.ReadAll(unpacked)
		outside = bytes.Contains(names, []byte("_ExternalCode"))
	}
	return fmt.Sprint(results[0], " outside: ", outside)
}

func main() {
	var list *node
	for i := 0; i < 1000; i++ {
		list = &node{list, i}
	}
	list = &node{list, 1000}
	profiles, rounds := false, 0
	for _, argument := range os.Args[1:] {
		if argument == "profile" {
			profiles = true
		} else {
			fmt.Sscan(argument, &rounds)
		}
	}
	if rounds > 0 {
		for i := 0; i < rounds; i++ {
			fmt.Println(round(list, profiles))
		}
		return
	}
	input := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for input.Scan() {
		fmt.Println(round(list, profiles))
	}
}
