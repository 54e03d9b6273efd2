// Calls functions that do not check for stack space wherever a stack may be at its end. Says `ready`, and for each line of input what came of a
// round of work.
package main

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"time"
)

const goroutines = 50

// How deep they go at least; not far, and one after another, where anything is asked for.
var depth = 1000
var slowly = false

//go:noinline
//go:nosplit
func Leaf(n int) int {
	return n*3 + 1
}

// As much of a stack as such a function may take, about.
//
//go:noinline
//go:nosplit
func Deep(n int) int {
	var frame [84]int
	frame[n&63] = n
	return Leaf(frame[n&63]) + frame[(n+1)&63]
}

// By frames of two sizes, so that a stack may end anywhere in one. Each calls before it goes deeper, and so at the end of every stack that
// becomes too small.
//
//go:noinline
func Descends(n int, way uint32) int {
	if n == 0 {
		return 0
	}
	next := way*1664525 + 1013904223
	if way>>31 == 0 {
		return Wide(n, next)
	}
	sum := Deep(n)
	return sum + Descends(n-1, next)
}

// As much as such a function may take that compares the stack pointer itself.
//
//go:noinline
func Wide(n int, way uint32) int {
	var frame [10]int
	frame[n&7] = n
	sum := Deep(frame[n&7])
	return sum + Descends(n-1, way) + frame[(n+1)&7]
}

func work() int {
	var all sync.WaitGroup
	sums := make([]int, goroutines)
	for i := range sums {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			sums[i] = Descends(depth+i, uint32(i))
		}(i)
		if slowly {
			all.Wait()
			time.Sleep(20 * time.Millisecond)
		}
	}
	all.Wait()
	sum := 0
	for _, one := range sums {
		sum += one
	}
	return sum
}

func main() {
	if len(os.Args) > 1 {
		slowly, depth = true, 100
	}
	fmt.Println("ready")
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		fmt.Println(work())
	}
}
