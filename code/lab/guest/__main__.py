"""The program in the sandbox."""

if __name__ == "__main__":
    from lab.guest.serving import main

    main()
